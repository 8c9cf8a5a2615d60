"""Chooses which rows of a sequence survive, and moves the survivors together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paged_kv.batch import TableMirror
from paged_kv.policy import LaneMode, Policy, ScoreView
from paged_kv.pool import KVPool
from paged_kv.smoothing import highest_nearby


@dataclass(frozen=True, slots=True)
class EvictionDriver:
    """Turns a policy's scores into fewer rows. Runs between forwards, never inside one.

    The first `sinks` and the last `recent` rows of every lane survive whatever their score. `lanes`: who competes for
    the rows to keep; "uniform" gives every lane the same count, "layer" lets the lanes of a layer compete, "global"
    all lanes of the sequence. Lane of layer l, KV head h: `l * kv_heads + h`. `pool` is odd: before lanes compete, a
    row gets the highest score of so many rows around it; those that survive in any case lend theirs to nobody.
    """

    policy: Policy
    sinks: int
    recent: int
    lanes: LaneMode
    kv_heads: int
    pool: int = 1

    def __post_init__(self) -> None:
        if self.pool < 1 or self.pool % 2 == 0:
            raise ValueError(f"pool is an odd number of rows, got {self.pool}")

    def compress(self, pool: KVPool, mirror: TableMirror, slot: int, keep_rows: int, seen: int) -> Tensor:
        """Leave the best `keep_rows` rows of `slot`, counted over all lanes; returns the rows left, int64 [lanes].

        Survivors keep their order and move to the front of their lane; nothing is recomputed. A lane cannot be left
        with more rows than it has, so fewer than `keep_rows` may stay.
        """
        kept = mirror.kept(slot)
        addresses = mirror.slots_of_rows(slot)
        rows = torch.arange(addresses.shape[1], device=addresses.device)
        keys, values = self._vectors(pool, addresses, rows < kept.unsqueeze(-1))
        view = ScoreView(rows, kept, self._statistic(pool, addresses), keep_rows // kept.numel(), seen, keys, values)
        survives = self.choose(self.policy.score(view), view, keep_rows)
        left = survives.sum(dim=1)
        targets = rows < left.unsqueeze(-1)
        sources, targets = addresses[survives], addresses[targets]
        moved = sources != targets
        pool.move(sources[moved], targets[moved])
        mirror.truncate(slot, left)
        return left

    def choose(self, scores: Tensor, view: ScoreView, keep_rows: int) -> Tensor:
        """Which rows survive: bool [lanes, R]. Between equal scores the newer row wins; NaN counts as the lowest."""
        age = view.age
        protected = (view.rows < self.sinks) | (age < self.recent)
        ranked = torch.nan_to_num(scores.float(), nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
        ranked = ranked.masked_fill(protected, float("inf")).masked_fill(age < 0, float("-inf"))
        ranked = highest_nearby(ranked, self.pool)
        # Lanes lie side by side by age, newest first, so that a stable sort breaks ties the same way in all of them.
        mirrored = age.clamp(min=0)  # the row of each age, as well as the age of each row
        by_age = ranked.gather(1, mirrored).masked_fill(age < 0, float("-inf"))
        order = self._competitors(by_age).argsort(dim=1, descending=True, stable=True)
        winners = torch.zeros_like(order, dtype=torch.bool)
        winners.scatter_(1, order[:, : keep_rows // order.shape[0]], True)
        survives = winners.view(order.shape[0], view.rows.numel(), -1).mT.reshape(by_age.shape)
        return survives.gather(1, mirrored) & (age >= 0)

    def _competitors(self, by_age: Tensor) -> Tensor:
        """Scores [lanes, R] as [groups, R * lanes of the group], age before lane."""
        size = {"uniform": 1, "layer": self.kv_heads, "global": by_age.shape[0]}[self.lanes]
        return by_age.view(-1, size, by_age.shape[1]).mT.flatten(1, 2)

    def _vectors(self, pool: KVPool, addresses: Tensor, is_row: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if not self.policy.reads_rows:
            return None, None
        planes = (plane.flatten(0, 1)[addresses] for plane in (pool.keys, pool.values))
        keys, values = (torch.where(is_row.unsqueeze(-1), pool.format.decode(plane), 0.0) for plane in planes)
        return keys, values

    @staticmethod
    def _statistic(pool: KVPool, addresses: Tensor) -> Tensor | None:
        if pool.observation is None:
            return None
        return pool.observation.statistic(pool.state.flatten(0, 1)[addresses])
