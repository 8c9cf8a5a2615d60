"""Chooses which rows of a sequence survive, and moves the survivors together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_kv.batch import TableMirror
from paged_kv.lanes import LaneProfile
from paged_kv.policy import LaneMode, Policy, ScoreView
from paged_kv.pool import KVPool
from paged_kv.selection import highest, rows_that_fit
from paged_kv.smoothing import highest_nearby


@dataclass(frozen=True, slots=True)
class Target:
    """`keep_rows`: rows to leave of the sequence in `slot`, over all its lanes; `seen` of its tokens are computed.

    `pinned`: where sequences are compressed together, rows that stay besides at the beginning of each lane.
    """

    slot: int
    keep_rows: int
    seen: int
    pinned: int = 0


@dataclass(frozen=True, slots=True)
class EvictionDriver:
    """Turns a policy's scores into fewer rows. Runs between forwards, never inside one.

    The first `sinks` and the last `recent` rows of every lane survive whatever their score. `lanes`: who competes for
    the rows to keep; "uniform" gives every lane the same count, "layer" lets the lanes of a layer compete, "global"
    all lanes of the sequence, and "profile" gives each lane what `profile` says. Lane of layer l, KV head h:
    `l * kv_heads + h`. `pool` is odd: before lanes compete, a row gets the highest score of so many rows around it;
    those that survive in any case lend theirs to nobody. All rows survive of the block of `block` tokens that the next
    token belongs to.
    """

    policy: Policy
    sinks: int
    recent: int
    lanes: LaneMode
    kv_heads: int
    pool: int = 1
    profile: LaneProfile | None = None
    block: int = 1

    def __post_init__(self) -> None:
        if self.pool < 1 or self.pool % 2 == 0:
            raise ValueError(f"pool is an odd number of rows, got {self.pool}")
        if self.lanes == "profile" and self.profile is None:
            raise ValueError("lanes cannot follow a profile where none is given")

    def compress(self, pool: KVPool, mirror: TableMirror, target: Target, fresh: Tensor | None = None) -> Tensor:
        """Leave the best rows of one sequence, as many as `target` says; returns the rows left, int64 [lanes].

        Survivors keep their order and move to the front of their lane; nothing is recomputed. A lane cannot be left
        with more rows than it has, so fewer may stay. `fresh` int64 [pages], unless None or empty: survivors are
        copied to these pages, lane after lane, and the rows where they were stay as they are.
        """
        view, addresses = self._look(pool, mirror, target)
        survives = self.choose(self.policy.score(view), view, target.keep_rows)
        return self._keep(pool, mirror, target.slot, addresses, survives, fresh)

    def compress_together(
        self, pool: KVPool, mirror: TableMirror, targets: Sequence[Target], max_pages: int
    ) -> list[Tensor]:
        """Let sequences compete for `max_pages` pages; returns the rows left of each, int64 [lanes].

        No sequence is left with less than `compress` would leave of it. Of the other rows, those that are worth least
        go, whichever sequence holds them: by their scores, where the policy's scores mean the same everywhere and all
        lanes compete, else the same share of every group of competing lanes. See `rows_that_fit`.
        """
        looks = [self._look(pool, mirror, target) for target in targets]
        worths = [self._worth(view, target) for (view, _), target in zip(looks, targets, strict=True)]
        lefts = rows_that_fit(worths, pool.page_size, max_pages)
        for target, (view, addresses), worth, left in zip(targets, looks, worths, lefts, strict=True):
            if (left < view.kept).any():
                self._keep(pool, mirror, target.slot, addresses, _by_age(highest(worth, left), view, False))
        return lefts

    def choose(self, scores: Tensor, view: ScoreView, keep_rows: int) -> Tensor:
        """Which rows survive: bool [lanes, R]. Between equal scores the newer row wins; NaN counts as the lowest."""
        competitors = self._competitors(self._ranked(scores, view))
        winners = highest(competitors, self._quotas(view, keep_rows, competitors.shape[0]))
        return _by_age(self._lanes(winners, view), view, False)

    def _worth(self, view: ScoreView, target: Target) -> Tensor:
        """What rows are worth to competing sequences, [lanes, R] by age; infinite for those that stay in any case."""
        competitors = self._competitors(self._ranked(self.policy.score(view), view))
        quotas = self._quotas(view, target.keep_rows, competitors.shape[0])
        chosen = highest(competitors, quotas)
        if self.policy.comparable and self.lanes == "global":
            worth = competitors.clamp(min=torch.finfo(torch.float32).min)
        else:
            order = competitors.argsort(dim=1, descending=True, stable=True)
            held = self._competitors(view.age >= 0).sum(dim=1)
            places = torch.arange(order.shape[1], device=order.device) - quotas.unsqueeze(-1) + 1
            shares = places / (held - quotas).clamp(min=1).unsqueeze(-1)
            worth = torch.empty_like(competitors).scatter_(1, order, -shares)
        pinned = view.kept.unsqueeze(-1) - view.rows <= target.pinned  # by age
        worth = self._lanes(worth.masked_fill(chosen, float("inf")), view).masked_fill(pinned, float("inf"))
        return worth.masked_fill(view.age < 0, float("-inf"))

    def _ranked(self, scores: Tensor, view: ScoreView) -> Tensor:
        """Scores as rows compete with them, [lanes, R] by age: infinite for the protected, smoothed, never NaN."""
        age = view.age
        protected = (view.rows < self.sinks) | (age < self._newest(view))
        ranked = torch.nan_to_num(scores.float(), nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
        ranked = highest_nearby(ranked.masked_fill(protected | (age < 0), float("-inf")), self.pool)
        ranked = ranked.clamp(max=torch.finfo(torch.float32).max)  # a policy's certain rows stand behind the protected
        return _by_age(ranked.masked_fill(protected, float("inf")), view, float("-inf"))

    def _competitors(self, by_age: Tensor) -> Tensor:
        """Values [lanes, R] as [groups, R * lanes of the group], age before lane."""
        size = {"layer": self.kv_heads, "global": by_age.shape[0]}.get(self.lanes, 1)
        return by_age.view(-1, size, by_age.shape[1]).mT.flatten(1, 2)

    def _lanes(self, competitors: Tensor, view: ScoreView) -> Tensor:
        """The way back from `_competitors`."""
        return competitors.view(competitors.shape[0], view.rows.numel(), -1).mT.reshape(-1, view.rows.numel())

    def _quotas(self, view: ScoreView, keep_rows: int, groups: int) -> Tensor:
        """How many rows each group of competing lanes keeps, int64 [groups]."""
        if self.profile is not None and self.lanes == "profile":
            return self.profile.counts(keep_rows, view.kept, view.seen, self.sinks + self._newest(view))
        return view.kept.new_full((groups,), keep_rows // groups)

    def _newest(self, view: ScoreView) -> int:
        """How many of each lane's last rows survive in any case."""
        return max(self.recent, view.seen % self.block)

    def _keep(
        self,
        pool: KVPool,
        mirror: TableMirror,
        slot: int,
        addresses: Tensor,
        survives: Tensor,
        fresh: Tensor | None = None,
    ) -> Tensor:
        """Move what survives together; returns the rows left."""
        left = survives.sum(dim=1)
        sources = addresses[survives]
        if fresh is None or not fresh.numel():
            mirror.truncate(slot, left)
        else:
            mirror.replace(slot, left, fresh)
        targets = mirror.slots_of_rows(slot)
        targets = targets[torch.arange(targets.shape[1], device=targets.device) < left.unsqueeze(-1)]
        pool.move(sources, targets, left)
        return left

    def _look(self, pool: KVPool, mirror: TableMirror, target: Target) -> tuple[ScoreView, Tensor]:
        """What the policy may see of a sequence, and where its rows lie, int64 [lanes, R]."""
        kept = mirror.kept(target.slot)
        addresses = mirror.slots_of_rows(target.slot)
        rows = torch.arange(addresses.shape[1], device=addresses.device)
        keys, values = self._vectors(pool, addresses, rows < kept.unsqueeze(-1))
        statistic, written = self._state(pool, mirror.pages(target.slot), rows.numel())
        keep = target.keep_rows // kept.numel()
        return ScoreView(rows, kept, statistic, keep, target.seen, keys, values, written), addresses

    def _vectors(self, pool: KVPool, addresses: Tensor, is_row: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if not self.policy.reads_rows:
            return None, None
        planes = (plane.flatten(0, 1)[addresses] for plane in (pool.keys, pool.values))
        keys, values = (torch.where(is_row.unsqueeze(-1), pool.format.decode(plane), 0.0) for plane in planes)
        return keys, values

    def _state(self, pool: KVPool, pages: Tensor, rows: int) -> tuple[Tensor | None, Tensor | None]:
        """What observation and scorer have noted about the first `rows` rows of `pages` [lanes, columns]."""
        if not self.policy.state_bytes:
            return None, None
        state = pool.state[pages].flatten(1, 2)[:, :rows]
        if pool.scorer is not None:
            return None, pool.scorer.scores(state)
        assert pool.observation is not None
        return pool.observation.statistic(state), None


def _by_age(values: Tensor, view: ScoreView, behind: float) -> Tensor:
    """`values` [lanes, R] with each lane's newest row first, so that ties break the same way in all lanes.

    The age of a row is also the row of that age; `behind` stands behind a lane's end, where it is negative.
    """
    return values.gather(1, view.age.clamp(min=0)).masked_fill(view.age < 0, behind)
