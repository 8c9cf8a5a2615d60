"""Tensors on disk, as a whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from models.errors import ModelError


def write_whole(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Make `path` a safetensors file of `tensors`; until that is done, what was there stays. Raises ModelError."""
    unfinished = path.with_name(f"{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), unfinished, dict(metadata))
        unfinished.replace(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be written: {error}") from error
