"""Where prompts come from: one file each, its name is the option of `--dataset-name`.

A file exposes `DATASET`, a `Dataset`: a frozen dataclass whose fields are its flags.
"""
