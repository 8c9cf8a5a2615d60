"""One GGUF file, memory-mapped: typed access to its metadata, and its tensors by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize

from models.errors import ModelError

_AS_STORED = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
    GGMLQuantizationType.BF16: np.uint16,  # numpy has no bfloat16: its bits stand in for it
}


class GGUFFile:
    """`architecture`, `tensors` (by GGUF name), and metadata through `get`, `require`, `hparam`.

    Raises ModelError where the file is damaged or a value is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise ModelError(f"{path} is not a readable GGUF file ({error}); download it again") from error
        self.tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in self._reader.tensors}
        self.architecture: str = self.require("general.architecture")

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key as plain Python (str, int, float, bool, list)."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelError(f"{self.path} has no {key!r} in its metadata: convert the model to GGUF again")
        return value

    def hparam(self, name: str, default: Any = None) -> Any:
        """The value of `<architecture>.<name>`."""
        return self.get(f"{self.architecture}.{name}", default)

    def require_hparam(self, name: str) -> Any:
        return self.require(f"{self.architecture}.{name}")

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape in torch's order, outermost first."""
        if name not in self.tensors:
            raise ModelError(f"{self.path} has no tensor {name!r}: it is incomplete")
        return tuple(int(size) for size in reversed(self.tensors[name].shape))

    def stored_type(self, name: str) -> GGMLQuantizationType:
        """F16 and BF16 stay what they are; all else is read as F32."""
        kind = self.tensors[name].tensor_type
        return kind if kind in _AS_STORED else GGMLQuantizationType.F32

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor's values, in torch's order and `stored_type`; quantised blocks are expanded to float32."""
        tensor = self.tensors[name]
        if (dtype := _AS_STORED.get(tensor.tensor_type)) is not None:
            values: np.ndarray[Any, Any] = tensor.data.view(dtype)
            return values.reshape(self.shape(name))
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path}: {name} is stored as {tensor.tensor_type.name}, which cannot be read; "
                "use a file quantised as Q4_0 to Q8_0, a K-quant, F16 or BF16"
            ) from error
        return values.reshape(self.shape(name))
