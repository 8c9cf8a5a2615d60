"""Commands that measure; each writes a table, JSON and, where a picture helps, a plot to `benchmarks/results/`."""
