"""From a checkpoint's tensors to the layers that decoders are made of."""

from __future__ import annotations

import torch
from torch import Tensor

from models.checkpoint import Checkpoint
from models.linear import GROUP, FloatLinear, Int8Linear, Linear


class WeightReader:
    """Copies tensors of a checkpoint out of its mapped files, in the dtype that the model computes in.

    `quantize`: linear layers compute in 8 bits, except those whose inputs do not come in groups.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, *, quantize: bool = False, prefix: str = "") -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._quantize = quantize
        self._prefix = prefix
        self._names = checkpoint.names()

    def under(self, prefix: str) -> WeightReader:
        """A reader whose names start with `prefix`."""
        return WeightReader(self._checkpoint, self._dtype, quantize=self._quantize, prefix=self._prefix + prefix)

    def has(self, name: str) -> bool:
        """Whether the tensor exists."""
        return self._prefix + name in self._names

    def tensor(self, name: str) -> Tensor:
        """A tensor of its own memory. Raises ModelError if it is missing."""
        return self._checkpoint.tensor(self._prefix + name).to(self._dtype, copy=True)

    def linear(self, *names: str) -> Linear:
        """One linear layer out of several that read the same input, their outputs laid side by side."""
        parts = [self._checkpoint.tensor(f"{self._prefix}{name}.weight") for name in names]
        biases = [self._checkpoint.tensor(f"{self._prefix}{name}.bias") for name in names if self.has(f"{name}.bias")]
        weight = torch.cat(parts) if len(parts) > 1 else parts[0]
        bias = torch.cat(biases).to(self._dtype) if biases else None
        if self._quantize and weight.shape[1] % GROUP == 0:
            return Int8Linear(weight, bias)
        return FloatLinear(weight.to(self._dtype, copy=len(parts) == 1), bias)

    def head(self, name: str, embedding_name: str, embedding: Tensor) -> Linear:
        """The output head `name`; if the checkpoint has none, one that shares the weights of `embedding`."""
        if self.has(f"{name}.weight"):
            return self.linear(name)
        return self.linear(embedding_name) if self._quantize else FloatLinear(embedding)
