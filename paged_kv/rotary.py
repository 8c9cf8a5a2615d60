"""RoPE: where a token stands in the text, turned into its queries and keys before rows are stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotation at one step's positions (Su et al., arXiv 2104.09864), halves turned together.

    `cosine`, `sine` float32 [T, head_dim / 2].
    """

    cosine: Tensor
    sine: Tensor

    @staticmethod
    def at(positions: Tensor, inverse_frequencies: Tensor) -> Rotary:
        """For `positions` [T] and radians per position [head_dim / 2]."""
        angles = positions.float().unsqueeze(-1) * inverse_frequencies
        return Rotary(angles.cos(), angles.sin())

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate `x` [T, heads, head_dim]."""
        cosine, sine = self.cosine.unsqueeze(1), self.sine.unsqueeze(1)
        first, second = x.float().chunk(2, dim=-1)
        turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
        return turned.to(x.dtype)
