"""Page formats, one file each: the file name is what `--kv-cache-dtype` takes."""
