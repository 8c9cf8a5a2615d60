"""Has a model read a passage, and repeat it, and takes down what attention there was for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.causal_lm import CausalLM
from models.dense_pass import DensePass
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


class _Reading(DensePass):
    """Sums the weights that rows get from later blocks, and holds on to what each layer took in."""

    def __init__(self, model: CausalLM, block: int) -> None:
        super().__init__(model, block)
        self.noted: list[Tensor] = []  # per layer, [kv_heads, n]
        self.features: list[Tensor] = []
        self.rows: list[tuple[Tensor, Tensor]] = []

    def _attend(self, layer: int, fused: Tensor, rotary: Rotary | None) -> Tensor:
        self.features.append(fused.float().clone())
        return super()._attend(layer, fused, rotary)

    def _read(self, keys: Tensor, values: Tensor) -> None:
        self.rows.append((keys.clone(), values.clone()))
        self.noted.append(torch.zeros(keys.shape[:2]))

    def _note(self, layer: int, weights: Tensor) -> None:
        earlier = weights.shape[-1] - weights.shape[-2]
        self.noted[layer][:, :earlier] += weights[..., :earlier].mean(dim=1).sum(dim=1)


class _Repeating(DensePass):
    """Keeps the highest weight that each row of the text before gets."""

    def __init__(self, model: CausalLM, block: int, before: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__(model, block, before)
        self.noted = [torch.zeros(keys.shape[:2]) for keys, _ in before]

    def _read(self, keys: Tensor, values: Tensor) -> None:
        """It is the reading before that is of interest."""

    def _note(self, layer: int, weights: Tensor) -> None:
        noted = self.noted[layer]
        torch.maximum(noted, weights[..., : noted.shape[1]].amax(dim=(1, 2)), out=noted)
