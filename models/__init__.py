"""Weights to tokens: loading, decoder families, tokenizer, sampler, and the runner that executes a plan."""
