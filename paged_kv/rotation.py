"""An orthogonal change of basis for keys, which spreads a few large channels over all before they are rounded."""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST_BLOCK = 64
_SEED = 2023  # stored rows mean nothing under other signs


class Rotation:
    """x -> H (signs * x) / sqrt(block), block by block, with H the Walsh-Hadamard matrix (QuaRot, arXiv 2404.00456).

    Keeps dot products as they are, so queries that are rotated like the keys see the same scores. `signs`: float32
    [head_dim], 1 or -1. `block`: 64, or the largest power of two that divides `head_dim` if that is less.
    """

    def __init__(self, head_dim: int) -> None:
        generator = torch.Generator().manual_seed(_SEED)
        self.signs = torch.randint(0, 2, (head_dim,), generator=generator).float() * 2 - 1
        self.block = min(_LARGEST_BLOCK, head_dim & -head_dim)

    def __call__(self, vectors: Tensor) -> Tensor:
        """Rotate float vectors [..., head_dim]."""
        rotated = (vectors.float() * self.signs).unflatten(-1, (-1, self.block))
        half = 1
        while half < self.block:
            first, second = rotated.unflatten(-1, (-1, 2, half)).unbind(-2)
            rotated = torch.stack((first + second, first - second), dim=-2).flatten(-3)
            half *= 2
        scaled: Tensor = rotated.flatten(-2) * self.block**-0.5
        return scaled
