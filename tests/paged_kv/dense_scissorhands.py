"""Scissorhands as published, dense and slow: the oracle that the paged engine is compared with, row for row."""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class _Row:
    position: int
    key: Float64
    value: Float64
    unimportant: deque[bool]
    """One flag per step at which the row was held, the newest last; no longer than the history window."""


class DenseScissorhands:
    """One layer's heads, token by token: Algorithm 1 of arXiv 2305.17118 with Algorithm 2 as its compression.

    The weight of a row at a step is its softmax probability, averaged over the query heads that share its KV head; the
    row is unimportant at that step if its weight is below 1/n, with n the rows its KV head holds, the new one included.
    When n exceeds `budget`, each KV head drops the `drop` rows that were unimportant most often in the last `window`
    steps, the oldest first among equals, and never one of the `recent` newest.

    All arithmetic is float64. `min_margin` is the smallest |weight - 1/n| met so far: if it is well above the rounding
    error of another implementation, both must have kept the same rows. Steps with n = 1 do not count towards it, since
    a lone row weighs exactly 1 in any arithmetic.

    Raises ValueError if no choice of rows could honour `budget`, `recent` and `drop` together.
    """

    def __init__(
        self,
        num_kv_heads: int,
        group_size: int,
        head_dim: int,
        *,
        budget: int,
        window: int = 400,
        recent: int = 10,
        drop: int | None = None,
    ) -> None:
        self.num_kv_heads = num_kv_heads
        self.group_size = group_size
        self.head_dim = head_dim
        self.budget = budget
        self.window = window
        self.recent = recent
        self.drop = budget // 2 if drop is None else drop
        self.min_margin = math.inf
        if min(num_kv_heads, group_size, head_dim, budget, window, self.drop) < 1 or recent < 0:
            raise ValueError("every size but recent must be at least 1, and recent at least 0")
        if self.recent + self.drop > budget + 1:
            raise ValueError(f"cannot drop {self.drop} of {budget + 1} rows and keep the {recent} newest")
        self._heads: list[list[_Row]] = [[] for _ in range(num_kv_heads)]
        self._steps = 0

    def step(self, q: Float32, k: Float32, v: Float32) -> Float64:
        """Append one token, attend over the kept rows and the new one, then compress if they exceed the budget.

        `q` is [num_kv_heads * group_size, head_dim], the query heads of one KV head side by side; `k` and `v` are
        [num_kv_heads, head_dim]. Returns the attention output, of the shape of `q`.
        """
        heads, group, dim = self.num_kv_heads, self.group_size, self.head_dim
        if q.shape != (heads * group, dim) or k.shape != (heads, dim) or v.shape != (heads, dim):
            raise ValueError(f"q, k, v of shapes {q.shape}, {k.shape}, {v.shape} do not fit the heads")
        queries, keys, values = (x.astype(np.float64) for x in (q, k, v))
        outputs = []
        for head, rows in enumerate(self._heads):
            rows.append(_Row(self._steps, keys[head], values[head], deque(maxlen=self.window)))
            probabilities = self._attend(queries[head * group : (head + 1) * group], rows)
            self._record(probabilities, rows)
            outputs.append(probabilities @ np.stack([row.value for row in rows]))
            if len(rows) > self.budget:
                self._heads[head] = self._compress(rows)
        self._steps += 1
        return np.concatenate(outputs)

    def kept_positions(self, head: int) -> list[int]:
        """The original positions of the tokens that a KV head still holds, ascending."""
        return [row.position for row in self._heads[head]]

    def _attend(self, queries: Float64, rows: list[_Row]) -> Float64:
        """Softmax probabilities [group_size, n] of one KV head's queries over its rows."""
        keys = np.stack([row.key for row in rows])
        # Not a matrix product: BLAS may round equal keys differently by their place, and ties must stay exact.
        logits = (queries[:, None, :] * keys[None, :, :]).sum(axis=-1) * self.head_dim**-0.5
        exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities: Float64 = exponentials / exponentials.sum(axis=-1, keepdims=True)
        return probabilities

    def _record(self, probabilities: Float64, rows: list[_Row]) -> None:
        n = len(rows)
        # Mean of the differences, not difference of the mean: three times 1/n, over three, need not round to 1/n.
        excess = (probabilities - 1 / n).mean(axis=0)
        for row, above in zip(rows, excess, strict=True):
            row.unimportant.append(bool(above < 0))
        if n > 1:
            self.min_margin = min(self.min_margin, float(np.abs(excess).min()))

    def _compress(self, rows: list[_Row]) -> list[_Row]:
        n = len(rows)
        times_unimportant = [sum(row.unimportant) if i < n - self.recent else 0 for i, row in enumerate(rows)]
        most_unimportant_first = sorted(range(n), key=lambda i: (-times_unimportant[i], i))
        dropped = set(most_unimportant_first[: self.drop])
        return [row for i, row in enumerate(rows) if i not in dropped]
