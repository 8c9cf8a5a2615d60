"""Weights and configuration of a model folder, read lazily."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from models.errors import ModelError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FINGERPRINTED = 64  # numbers of a tensor


class Checkpoint:
    """A folder in Hugging Face's format with safetensors weights, one file or sharded.

    Files are opened when a tensor of theirs is first asked for, and memory-mapped. Raises ModelError for anything
    missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Mapping[str, Any] = _read_json(folder / "config.json")
        self._open_files: dict[str, Any] = {}

    @cached_property
    def generation_config(self) -> Mapping[str, Any]:
        """The content of generation_config.json; empty where there is none."""
        path = self.folder / "generation_config.json"
        return _read_json(path) if path.is_file() else {}

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer, from the generation config, else from the model's."""
        for config in (self.generation_config, self.config):
            if (ids := config.get("eos_token_id")) not in (None, []):
                return tuple(ids) if isinstance(ids, list) else (ids,)
        return ()

    def names(self) -> frozenset[str]:
        """The names of all tensors."""
        return frozenset(self._file_of)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as stored. Its memory is the file's mapping: copy before writing to it."""
        if name not in self._file_of:
            raise ModelError(f"{self.folder} has no tensor {name!r}: it is incomplete, or of another architecture")
        file = self._file_of[name]
        try:
            tensor: torch.Tensor = self._open(file).get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{self.folder / file} does not hold {name!r} as its index says ({error})") from error
        return tensor

    def fingerprint(self) -> str:
        """Tells models apart, as hexadecimal: from the shapes of all tensors and the first numbers of each."""
        digest = hashlib.sha256()
        for name in sorted(self.names()):
            tensor = self.tensor(name)
            digest.update(f"{name} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.flatten()[:_FINGERPRINTED].double().numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def _file_of(self) -> Mapping[str, str]:
        if (self.folder / _SINGLE).is_file():
            return dict.fromkeys(self._open(_SINGLE).keys(), _SINGLE)
        index = self.folder / _INDEX
        if not index.is_file():
            raise ModelError(f"{self.folder} has no {_SINGLE} and no {_INDEX}")
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(_is_file_name(file) for file in weight_map.values()):
            raise ModelError(f"{index} has no weight_map from tensor names to files of its folder")
        return weight_map

    def _open(self, file: str) -> Any:
        if file not in self._open_files:
            path = self.folder / file
            if not path.is_file():
                raise ModelError(f"{path} is missing: fetch the whole model again")
            try:
                self._open_files[file] = safe_open(path, framework="pt")
            except SafetensorError as error:
                raise ModelError(f"{path} is damaged ({error}): fetch it again") from error
        return self._open_files[file]


def _is_file_name(value: object) -> bool:
    return isinstance(value, str) and value.endswith(".safetensors") and PurePosixPath(value).name == value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path} is missing") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value
