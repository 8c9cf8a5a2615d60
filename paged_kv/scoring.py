"""Scores that a row gets when it is written, for policies that judge a row by what its token looked like."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_HALF_BYTES = 2


@dataclass(frozen=True, slots=True, eq=False)
class LinearScorer:
    """Scores linear in what the attention of a layer takes in: queries, keys and values before RoPE, side by side.

    `weights` float32 [layers, kv_heads, scores, (heads + 2 * kv_heads) * head_dim], `bias` float32
    [layers, kv_heads, scores]. A row keeps its scores as float16, in its state.
    """

    weights: Tensor
    bias: Tensor

    @property
    def num_scores(self) -> int:
        """Scores of a row."""
        return self.weights.shape[2]

    @property
    def state_bytes(self) -> int:
        """Bytes that every row carries for this."""
        return self.num_scores * _HALF_BYTES

    def state(self, layer: int, fused: Tensor) -> Tensor:
        """State of new rows of `layer`, uint8 [T, kv_heads, state_bytes], from `fused` float [T, features]."""
        scores = torch.einsum("tf,hsf->ths", fused.float(), self.weights[layer]) + self.bias[layer]
        limit = torch.finfo(torch.float16).max
        return scores.clamp(-limit, limit).half().view(torch.uint8)

    def scores(self, state: Tensor) -> Tensor:
        """Scores float32 [..., num_scores] from rows' state uint8 [..., state_bytes]."""
        return state.contiguous().view(torch.float16).float()
