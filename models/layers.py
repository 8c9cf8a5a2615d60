"""Blocks that the decoder families share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from models.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x W^T + b, with `weight` [out, in] and `bias` [out] or None."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        return functional.linear(x, self.weight, self.bias)


class WeightReader:
    """Copies tensors of a checkpoint out of its mapped files, in the dtype that the model computes in."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, prefix: str = "") -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._prefix = prefix
        self._names = checkpoint.names()

    def under(self, prefix: str) -> WeightReader:
        """A reader whose names start with `prefix`."""
        return WeightReader(self._checkpoint, self._dtype, self._prefix + prefix)

    def has(self, name: str) -> bool:
        """Whether the tensor exists."""
        return self._prefix + name in self._names

    def tensor(self, name: str) -> Tensor:
        """A tensor of its own memory. Raises ModelError if it is missing."""
        return self._checkpoint.tensor(self._prefix + name).to(self._dtype, copy=True)

    def linear(self, *names: str) -> Linear:
        """One linear layer out of several that read the same input, their outputs laid side by side."""
        weight = torch.cat([self._checkpoint.tensor(f"{self._prefix}{name}.weight") for name in names])
        biases = [self._checkpoint.tensor(f"{self._prefix}{name}.bias") for name in names if self.has(f"{name}.bias")]
        bias = torch.cat(biases).to(self._dtype) if biases else None
        return Linear(weight.to(self._dtype), bias)


@dataclass(frozen=True, slots=True)
class Rotation:
    """RoPE at one step's positions (Su et al., arXiv 2104.09864), halves rotated together: `cos`, `sin` [T, 1, D/2]."""

    cos: Tensor
    sin: Tensor

    @staticmethod
    def at(positions: Tensor, inverse_frequencies: Tensor) -> Rotation:
        """For `positions` [T] and radians per position [D / 2]."""
        angles = (positions.float().unsqueeze(-1) * inverse_frequencies).unsqueeze(1)
        return Rotation(angles.cos(), angles.sin())

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate `x` [T, heads, D]."""
        first, second = x.float().chunk(2, dim=-1)
        turned = torch.cat((first * self.cos - second * self.sin, second * self.cos + first * self.sin), dim=-1)
        return turned.to(x.dtype)


def split_heads(fused: Tensor, heads: Sequence[int], head_dim: int) -> tuple[Tensor, ...]:
    """Split [T, sum(heads) * head_dim] into one [T, n, head_dim] for every n of `heads`."""
    parts: tuple[Tensor, ...] = fused.view(fused.shape[0], -1, head_dim).split(list(heads), dim=1)
    return parts
