"""What every decoder family offers to the runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor

from models.config import ModelConfig
from paged_kv.rotary import Rotary


class Attend(Protocol):
    """Stores the new rows of one layer and attends over all of its sequences' rows."""

    def __call__(self, layer: int, fused: Tensor, rotary: Rotary | None) -> Tensor:
        """`fused` [T, (heads + 2 * kv_heads) * head_dim]: queries, keys and values side by side, not yet rotated.

        Returns float32 [T, heads * head_dim].
        """


class CausalLM(ABC):
    """Weights and the computation between tokens and logits; knows nothing of sequences, pages or sampling."""

    config: ModelConfig

    @abstractmethod
    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Final, normed hidden states [T, hidden] of `tokens` int64 [T] at text `positions` int64 [T]."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits float32 [N, vocab] of rows [N, hidden]."""
