"""Eviction policies, one file each: the file name is what `--kv-policy` takes."""
