"""Tools: how a model is told of them, how it writes calls, and how what it writes is read."""
