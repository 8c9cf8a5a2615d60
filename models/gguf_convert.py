"""A GGUF file as a Hugging Face style folder, converted once and kept below the cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock
from tqdm import tqdm

from models.errors import ModelError
from models.gguf_config import convert_config
from models.gguf_file import GGUFFile
from models.gguf_tensors import convert_tensors
from models.gguf_tokenizer import convert_tokenizer, generation_config, tokenizer_config
from models.safetensors_writer import write_safetensors

CONVERTER_VERSION = 1  # raise it when the same file would give another folder

_SAMPLES = 64
_SAMPLE_BYTES = 64 * 1024


def converted_folder(source: Path, cache_dir: Path, report: Callable[[str], None]) -> Path:
    """The folder made from `source`, made now if need be.

    Safe against two processes at once (the second waits for the first) and against being killed: the folder appears
    under its name only when it is complete. Raises ModelError when the file cannot be converted or does not fit.
    """
    try:
        return _converted_folder(source, cache_dir, report)
    except OSError as error:
        raise ModelError(
            f"{source} cannot be converted below {cache_dir} ({error}); SCISSORSERVE_CACHE can name another folder"
        ) from error


def _converted_folder(source: Path, cache_dir: Path, report: Callable[[str], None]) -> Path:
    folder = cache_dir / f"{source.stem}-{_fingerprint(source)}"
    if folder.is_dir():
        return folder
    cache_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(cache_dir / f".{folder.name}.lock"):
        if folder.is_dir():
            return folder
        partial = f".{folder.name}.partial-"
        for entry in cache_dir.iterdir():
            if entry.name.startswith(partial):  # left by a process that is gone: it would hold the lock
                shutil.rmtree(entry)
        report(f"Converting {source.name} to {folder} (once)")
        with tempfile.TemporaryDirectory(prefix=partial, dir=cache_dir) as scratch:
            made = Path(scratch, "model")
            made.mkdir()
            _convert(GGUFFile(source), made)
            made.rename(folder)
    return folder


def _fingerprint(source: Path) -> str:
    """A name for the file's content: its size, evenly spread samples with both ends, and the converter's version."""
    size = source.stat().st_size
    digest = hashlib.sha256(f"{CONVERTER_VERSION} {size} ".encode())
    last = max(0, size - _SAMPLE_BYTES)
    with source.open("rb") as file:
        for sample in range(_SAMPLES):
            file.seek(last * sample // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _convert(file: GGUFFile, folder: Path) -> None:
    config = convert_config(file)
    tensors = list(convert_tensors(file, config))
    size = sum(tensor.nbytes for tensor in tensors)
    if size > (free := shutil.disk_usage(folder).free):
        raise ModelError(
            f"{file.path} needs {size / 1e9:.1f} GB below {folder.parent.parent}, where {free / 1e9:.1f} GB are free; "
            "set SCISSORSERVE_CACHE to a folder on a larger disk"
        )
    convert_tokenizer(file).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(file))
    _write_json(folder / "generation_config.json", generation_config(file))
    _write_json(folder / "config.json", config)
    with tqdm(total=size, desc=file.path.name, unit="B", unit_scale=True, disable=None) as bar:
        write_safetensors(folder / "model.safetensors", tensors, bar.update)
    _sync(folder)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sync(folder: Path) -> None:
    """Have every file of the folder on the disk before the folder gets its name."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
