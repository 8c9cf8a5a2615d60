"""The engines that `benchmarks.peers` compares: one worker script each, run by that engine's own interpreter.

A worker reads a `protocol.Job` from standard input and prints a JSON line per run. What the workers share
(`protocol`, `timing`, `worker`) needs the standard library only.
"""
