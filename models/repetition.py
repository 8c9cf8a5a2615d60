"""Has a model read a passage, and repeat it, and takes down what attention there was for each row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.causal_lm import CausalLM
from paged_kv.rotary import Rotary

BLOCK = 256  # tokens whose queries are looked at together


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """`features` float32 [layers, n, (heads + 2 * kv_heads) * head_dim]: what attention took in for each token.

    `recall` [layers, kv_heads, n]: the highest weight that a row got while the passage was repeated (KVzip, arXiv
    2505.23416). `flow` [layers, kv_heads, n]: the mean weight that a row got from the blocks of tokens after its
    own, NaN in the last one. Both over the queries that share the KV head.
    """

    features: Tensor
    recall: Tensor
    flow: Tensor


def attended(model: CausalLM, passage: Sequence[int], request: Sequence[int], block: int = BLOCK) -> Attended:
    """Read `passage`, then `request`, which asks to repeat it, and `passage` again, in blocks of `block` tokens."""
    reading = _Reading(model, block)
    reading.run(passage)
    flow = torch.stack(reading.noted) / _later(len(passage), block)
    repeating = _Repeating(model, block, reading.rows)
    repeating.run([*request, *passage], start=len(passage))
    return Attended(torch.stack(reading.features), torch.stack(repeating.noted), flow)


def _later(length: int, block: int) -> Tensor:
    """How many tokens stand in the blocks after each token's own; NaN where there are none."""
    ends = (torch.arange(length) // block + 1) * block
    later = (length - ends).float()
    return later.masked_fill(later <= 0, torch.nan)


class _Pass(ABC):
    """Dense attention over a text and what was read before it, block by block of queries, in plain torch."""

    def __init__(self, model: CausalLM, block: int, before: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        self._model = model
        self._block = block
        self._before = before
        self.noted: list[Tensor] = []  # per layer, [kv_heads, n]

    def run(self, tokens: Sequence[int], start: int = 0) -> None:
        """Read `tokens` from position `start` on."""
        self._model.hidden(torch.tensor(tokens), torch.arange(start, start + len(tokens)), self._attend)

    @abstractmethod
    def _note(self, noted: Tensor, weights: Tensor) -> None:
        """Take down `weights` [kv_heads, group, queries, rows] of a block; its last rows are its queries' own."""

    @abstractmethod
    def _read(self, fused: Tensor, keys: Tensor, values: Tensor) -> None:
        """Hear of what a layer took in."""

    def _attend(self, layer: int, fused: Tensor, rotary: Rotary | None) -> Tensor:
        config, count = self._model.config, fused.shape[0]
        split = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        parts: tuple[Tensor, ...] = fused.float().view(count, -1, config.head_dim).split(split, dim=1)
        queries, keys, values = parts
        queries, keys = (queries, keys) if rotary is None else (rotary(queries), rotary(keys))
        queries, keys, values = (part.transpose(0, 1) for part in (queries, keys, values))
        self._read(fused, keys, values)
        past = 0
        if self._before:
            past = self._before[layer][0].shape[1]
            keys, values = (torch.cat(both, dim=1) for both in zip(self._before[layer], (keys, values), strict=True))
        grouped = queries.reshape(config.num_kv_heads, -1, count, config.head_dim) * config.head_dim**-0.5
        noted = torch.zeros(config.num_kv_heads, past or count)
        output = torch.empty_like(grouped)
        for first in range(0, count, self._block):
            last = min(first + self._block, count)
            seen = torch.arange(past + last) <= torch.arange(past + first, past + last).unsqueeze(-1)
            scores = grouped[:, :, first:last] @ keys[:, None, : past + last].mT
            weights = scores.masked_fill_(~seen, float("-inf")).softmax(dim=-1)
            self._note(noted, weights)
            output[:, :, first:last] = weights @ values[:, None, : past + last]
        self.noted.append(noted)
        return output.flatten(0, 1).transpose(0, 1).flatten(1).contiguous()


class _Reading(_Pass):
    """Sums the weights that rows get from later blocks, and holds on to what each layer took in."""

    def __init__(self, model: CausalLM, block: int) -> None:
        super().__init__(model, block)
        self.features: list[Tensor] = []
        self.rows: list[tuple[Tensor, Tensor]] = []

    def _read(self, fused: Tensor, keys: Tensor, values: Tensor) -> None:
        self.features.append(fused.float().clone())
        self.rows.append((keys.clone(), values.clone()))

    def _note(self, noted: Tensor, weights: Tensor) -> None:
        earlier = weights.shape[-1] - weights.shape[-2]
        noted[:, :earlier] += weights[..., :earlier].mean(dim=1).sum(dim=1)


class _Repeating(_Pass):
    """Keeps the highest weight that each row of the text before gets."""

    def _read(self, fused: Tensor, keys: Tensor, values: Tensor) -> None:
        """It is the reading before that is of interest."""

    def _note(self, noted: Tensor, weights: Tensor) -> None:
        highest = weights[..., : noted.shape[1]].amax(dim=(1, 2))
        torch.maximum(noted, highest, out=noted)
