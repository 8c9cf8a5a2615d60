"""Chooses which rows of a sequence survive, and moves the survivors together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paged_kv.batch import TableMirror
from paged_kv.lanes import LaneProfile
from paged_kv.policy import LaneMode, Policy, ScoreView
from paged_kv.pool import KVPool
from paged_kv.smoothing import highest_nearby


@dataclass(frozen=True, slots=True)
class EvictionDriver:
    """Turns a policy's scores into fewer rows. Runs between forwards, never inside one.

    The first `sinks` and the last `recent` rows of every lane survive whatever their score. `lanes`: who competes for
    the rows to keep; "uniform" gives every lane the same count, "layer" lets the lanes of a layer compete, "global"
    all lanes of the sequence, and "profile" gives each lane what `profile` says. Lane of layer l, KV head h:
    `l * kv_heads + h`. `pool` is odd: before lanes compete, a row gets the highest score of so many rows around it;
    those that survive in any case lend theirs to nobody.
    """

    policy: Policy
    sinks: int
    recent: int
    lanes: LaneMode
    kv_heads: int
    pool: int = 1
    profile: LaneProfile | None = None

    def __post_init__(self) -> None:
        if self.pool < 1 or self.pool % 2 == 0:
            raise ValueError(f"pool is an odd number of rows, got {self.pool}")
        if self.lanes == "profile" and self.profile is None:
            raise ValueError("lanes cannot follow a profile where none is given")

    def compress(
        self,
        pool: KVPool,
        mirror: TableMirror,
        slot: int,
        keep_rows: int,
        seen: int,
        fresh: Tensor | None = None,
    ) -> Tensor:
        """Leave the best `keep_rows` rows of `slot`, counted over all lanes; returns the rows left, int64 [lanes].

        Survivors keep their order and move to the front of their lane; nothing is recomputed. A lane cannot be left
        with more rows than it has, so fewer than `keep_rows` may stay. `fresh` int64 [pages], unless None or empty:
        survivors are copied to these pages, lane after lane, and the rows where they were stay as they are.
        """
        kept = mirror.kept(slot)
        addresses = mirror.slots_of_rows(slot)
        rows = torch.arange(addresses.shape[1], device=addresses.device)
        keys, values = self._vectors(pool, addresses, rows < kept.unsqueeze(-1))
        statistic, written = self._state(pool, addresses)
        keep = keep_rows // kept.numel()
        view = ScoreView(rows, kept, statistic, keep, seen, keys, values, written)
        survives = self.choose(self.policy.score(view), view, keep_rows)
        left = survives.sum(dim=1)
        sources = addresses[survives]
        if fresh is None or not fresh.numel():
            mirror.truncate(slot, left)
        else:
            mirror.replace(slot, left, fresh)
        targets = mirror.slots_of_rows(slot)
        targets = targets[torch.arange(targets.shape[1], device=targets.device) < left.unsqueeze(-1)]
        moved = sources != targets
        pool.move(sources[moved], targets[moved])
        return left

    def choose(self, scores: Tensor, view: ScoreView, keep_rows: int) -> Tensor:
        """Which rows survive: bool [lanes, R]. Between equal scores the newer row wins; NaN counts as the lowest."""
        age = view.age
        protected = (view.rows < self.sinks) | (age < self.recent)
        ranked = torch.nan_to_num(scores.float(), nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
        ranked = highest_nearby(ranked.masked_fill(protected | (age < 0), float("-inf")), self.pool)
        ranked = ranked.clamp(max=torch.finfo(torch.float32).max)  # a policy's certain rows stand behind the protected
        ranked = ranked.masked_fill(protected, float("inf")).masked_fill(age < 0, float("-inf"))
        # Lanes lie side by side by age, newest first, so that a stable sort breaks ties the same way in all of them.
        mirrored = age.clamp(min=0)  # the row of each age, as well as the age of each row
        by_age = ranked.gather(1, mirrored).masked_fill(age < 0, float("-inf"))
        order = self._competitors(by_age).argsort(dim=1, descending=True, stable=True)
        places = torch.arange(order.shape[1], device=order.device)
        winners = torch.empty_like(order, dtype=torch.bool)
        winners.scatter_(1, order, places < self._quotas(view, keep_rows, order.shape[0]).unsqueeze(-1))
        survives = winners.view(order.shape[0], view.rows.numel(), -1).mT.reshape(by_age.shape)
        return survives.gather(1, mirrored) & (age >= 0)

    def _competitors(self, by_age: Tensor) -> Tensor:
        """Scores [lanes, R] as [groups, R * lanes of the group], age before lane."""
        size = {"layer": self.kv_heads, "global": by_age.shape[0]}.get(self.lanes, 1)
        return by_age.view(-1, size, by_age.shape[1]).mT.flatten(1, 2)

    def _quotas(self, view: ScoreView, keep_rows: int, groups: int) -> Tensor:
        """How many rows each group of competing lanes keeps, int64 [groups]."""
        if self.profile is not None and self.lanes == "profile":
            return self.profile.counts(keep_rows, view.kept, view.seen, self.sinks + self.recent)
        return view.kept.new_full((groups,), keep_rows // groups)

    def _vectors(self, pool: KVPool, addresses: Tensor, is_row: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if not self.policy.reads_rows:
            return None, None
        planes = (plane.flatten(0, 1)[addresses] for plane in (pool.keys, pool.values))
        keys, values = (torch.where(is_row.unsqueeze(-1), pool.format.decode(plane), 0.0) for plane in planes)
        return keys, values

    def _state(self, pool: KVPool, addresses: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """What observation and scorer have noted about each row, of those that the policy has."""
        if not self.policy.state_bytes:
            return None, None
        state = pool.state.flatten(0, 1)[addresses]
        if pool.scorer is not None:
            return None, pool.scorer.scores(state)
        assert pool.observation is not None
        return pool.observation.statistic(state), None
