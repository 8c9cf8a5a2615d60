"""C++ kernels behind a plain C interface, and the Python that loads them. Knows nothing of sequences or requests."""
