"""Attention over whole texts in plain torch, for those who want to see the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from models.causal_lm import CausalLM
from models.config import ModelConfig
from paged_kv.rotary import Rotary


class DensePass(ABC):
    """Dense attention over a text and what was read before it, block by block of queries.

    `before`: for each layer, keys and values [kv_heads, rows, head_dim].
    """

    def __init__(self, model: CausalLM, block: int, before: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        self._model = model
        self._block = block
        self._before = before

    def run(self, tokens: Sequence[int], start: int = 0) -> None:
        """Read `tokens` from position `start` on."""
        self._model.hidden(torch.tensor(tokens), torch.arange(start, start + len(tokens)), self._attend)

    @abstractmethod
    def _read(self, keys: Tensor, values: Tensor) -> None:
        """Hear of the next layer's `keys` and `values` [kv_heads, n, head_dim], before its weights come."""

    @abstractmethod
    def _note(self, layer: int, weights: Tensor) -> None:
        """Take down `weights` [kv_heads, group, queries, rows] of a block; its last rows are its queries' own."""

    def _attend(self, layer: int, fused: Tensor, rotary: Rotary | None) -> Tensor:
        count = fused.shape[0]
        queries, keys, values = split_heads(self._model.config, fused, rotary)
        self._read(keys, values)
        past = 0
        if self._before:
            past = self._before[layer][0].shape[1]
            keys, values = (torch.cat(both, dim=1) for both in zip(self._before[layer], (keys, values), strict=True))
        output = torch.empty_like(queries)
        for first in range(0, count, self._block):
            last = min(first + self._block, count)
            seen = torch.arange(past + last) <= torch.arange(past + first, past + last).unsqueeze(-1)
            scores = queries[:, :, first:last] @ keys[:, None, : past + last].mT
            weights = scores.masked_fill_(~seen, float("-inf")).softmax(dim=-1)
            self._note(layer, weights)
            output[:, :, first:last] = weights @ values[:, None, : past + last]
        return joined_heads(output)


def split_heads(config: ModelConfig, fused: Tensor, rotary: Rotary | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [kv_heads, group, n, head_dim], scaled for the softmax, and keys and values [kv_heads, n, head_dim].

    All float32. `fused`, `rotary`: see `Attend`.
    """
    count = fused.shape[0]
    split = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    parts: tuple[Tensor, ...] = fused.float().view(count, -1, config.head_dim).split(split, dim=1)
    queries, keys, values = parts
    queries, keys = (queries, keys) if rotary is None else (rotary(queries), rotary(keys))
    queries, keys, values = (part.transpose(0, 1) for part in (queries, keys, values))
    grouped = queries.reshape(config.num_kv_heads, -1, count, config.head_dim) * config.head_dim**-0.5
    return grouped, keys, values


def joined_heads(output: Tensor) -> Tensor:
    """What an `Attend` returns, from [kv_heads, group, n, head_dim]."""
    return output.flatten(0, 1).transpose(0, 1).flatten(1).contiguous()
