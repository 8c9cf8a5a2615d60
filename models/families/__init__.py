"""Decoder families, one file each: the file name is the `model_type` of config.json."""
