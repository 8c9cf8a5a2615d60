"""Attention backends, one file each: the file name is what `--attention-backend` takes."""
