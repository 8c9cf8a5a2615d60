"""Write a safetensors file one tensor at a time, so that a large model never stands in memory as a whole."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
_ALIGNMENT = 8


@dataclass(frozen=True)
class LazyTensor:
    """A tensor to be written: `dtype` in safetensors' words, `load` gives `shape` values of that width."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], np.ndarray[Any, Any]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _ITEM_SIZES[self.dtype]


def write_safetensors(path: Path, tensors: Sequence[LazyTensor], written: Callable[[int], object]) -> None:
    """Write and sync `path`; `written` hears of each tensor's bytes. Peak memory is the largest tensor."""
    with path.open("wb") as file:
        header = _header(tensors)
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for tensor in tensors:
            data = np.ascontiguousarray(tensor.load())
            assert data.nbytes == tensor.nbytes, tensor.name
            file.write(data.data)
            written(tensor.nbytes)
        file.flush()
        os.fsync(file.fileno())


def _header(tensors: Sequence[LazyTensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries).encode()
    return text.ljust(math.ceil(len(text) / _ALIGNMENT) * _ALIGNMENT)
