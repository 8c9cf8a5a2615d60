"""Decides what runs: requests, batching, admission, preemption, the async engine. Integers only, no tensors or text."""
