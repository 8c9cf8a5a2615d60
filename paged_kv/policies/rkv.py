"""R-KV (Cai et al., arXiv 2505.24133): what is looked at, and not said again by other rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from paged_kv.observation import Observation
from paged_kv.policy import Policy, ScoreView
from paged_kv.smoothing import highest_nearby

_BLOCK = 1 << 18  # similarities held at once: what the second-level cache holds


@dataclass(frozen=True, slots=True)
class RKV(Policy):
    """Score: `balance` * I - (1 - `balance`) * R, and infinity for the newest `window` rows, as the authors' code does.

    I: the row's share of the attention of the last `window` queries, the highest of the `pool` rows around it; those
    that are infinite lend theirs to nobody. R: softmax over the n rows i of a lane of 1/n * sum over its rows j of
    s(j, i), the cosine between their keys; but s(j, i) is 0 if j = i, and if i is the newest row whose cosine with j
    exceeds `threshold`: of rows that say the same, the newest is not held to be redundant.

    The window moves in spans, see `Observation`: 4 of them hold 7 or 8 queries. Time is quadratic in the rows of a
    lane; memory is not.
    """

    reads_rows: ClassVar[bool] = True
    balance: float = 0.1
    window: int = 8
    counters: int | None = 4
    pool: int = 7
    threshold: float = 0.5

    @property
    def observation(self) -> Observation:
        """See `Policy.observation`."""
        return Observation("probability", window=self.window, counters=self.counters)

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        assert view.keys is not None
        shares = view.shares.masked_fill(view.age < self.window, float("inf")).masked_fill(view.age < 0, float("-inf"))
        redundancy = torch.zeros_like(shares)
        for lane, count in enumerate(view.kept.tolist()):
            redundancy[lane, :count] = _redundancy(view.keys[lane, :count], self.threshold)
        return self.balance * highest_nearby(shares, self.pool) - (1 - self.balance) * redundancy


def _redundancy(keys: Tensor, threshold: float) -> Tensor:
    """R of one lane, float32 [n], from its `keys` [n, head_dim]. See `RKV`."""
    directions = functional.normalize(keys, dim=-1)
    count = keys.shape[0]
    rows = torch.arange(count, dtype=torch.float32, device=keys.device)
    sums = keys.new_zeros(count)
    size = max(1, _BLOCK // max(1, count))
    for first in range(0, count, size):
        similar = directions[first : first + size] @ directions.T
        similar.diagonal(first).zero_()
        newest = torch.where(similar > threshold, rows, -1).amax(dim=1)
        newest = torch.where(newest < 0, rows[first : first + size], newest)  # none: itself, which is 0 already
        sums += similar.scatter_(1, newest.long().unsqueeze(1), 0.0).sum(dim=0)
    return (sums / count).softmax(dim=0)


POLICY = RKV()
