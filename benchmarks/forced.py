"""Feeds given tokens to the runner and compresses in between, as the scheduler would at the end of a prompt.

The server draws what follows a prompt. Here what follows is given, so that one can ask for a fact after its context was
compressed by a policy that had not seen the question. Pages, rows, scores and evictions are the engine's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.runner import ModelRunner
from paged_kv.allocator import PageAllocator
from paged_kv.batch import TableMirror
from paged_kv.pool import KVPool
from paged_kv.table import PageTable
from scheduler.budget import EvictionRules, SequenceBudget
from scheduler.plan import Eviction, SequenceWork, StepPlan
from scheduler.request import TokenLogprob


@dataclass(slots=True, eq=False)
class Fed:
    """A sequence that is being fed; `Forced` alone changes it. `seen`: tokens computed so far."""

    slot: int
    driver: str
    table: PageTable
    seen: int = 0

    @property
    def rows_per_lane(self) -> float:
        """Rows kept, as a mean over lanes."""
        return self.table.total_rows / self.table.num_lanes


@dataclass(frozen=True, slots=True)
class Saved:
    """All rows of an uncompressed sequence of `seen` tokens, with what is noted beside them: copies."""

    seen: int
    planes: tuple[Tensor, ...]
    fresh: tuple[Tensor, Tensor] | None


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens to compute next; with `targets`, what follows each of them, where logprobs of that are wanted."""

    fed: Fed
    tokens: Sequence[int]
    targets: Sequence[int] = ()


class Forced:
    """Drives a runner with plans of its own. Owns the table slots in `slots`; one thread calls it.

    `rules` per name of the runner's drivers: None for one that never evicts. `chunk`: the most tokens of a step.
    """

    def __init__(
        self,
        runner: ModelRunner,
        pool: KVPool,
        mirror: TableMirror,
        allocator: PageAllocator,
        rules: Mapping[str, EvictionRules | None],
        slots: range,
        chunk: int = 512,
    ) -> None:
        self._runner = runner
        self._pool = pool
        self._mirror = mirror
        self._allocator = allocator
        self._rules = rules
        self._free = list(slots)
        self._chunk = chunk

    def begin(self, driver: str, num_lanes: int) -> Fed:
        """A sequence of no tokens, evicted by `driver` when `compress` is called."""
        return Fed(self._free.pop(), driver, PageTable(num_lanes, self._pool.page_size))

    def end(self, fed: Fed) -> None:
        """Give up its rows."""
        fed.table.clear(self._allocator)
        self._runner.execute(StepPlan(released=(fed.slot,)))
        self._free.append(fed.slot)

    def read(self, fed: Fed, tokens: Sequence[int], size: float | int) -> None:
        """Feed a prompt and compress it to a budget of `size`: at its end, or on the way where the policy does so."""
        budget = self._budget(fed, size)
        done = 0
        while done < len(tokens):
            count = min(self._chunk, len(tokens) - done)
            if budget is not None and budget.rules.streaming:
                room = budget.high(fed.seen + count) + 1 - -(-fed.table.total_rows // fed.table.num_lanes)
                count = min(count, max(1, room))
            self.feed([Feed(fed, tokens[done : done + count])])
            done += count
            if done == len(tokens) or (budget is not None and budget.rules.streaming):
                self.compress(fed, size)

    def feed(self, feeds: Sequence[Feed]) -> list[list[TokenLogprob]]:
        """Compute all tokens of `feeds`, together where they fit into a step; the logprobs of each one's targets."""
        scored: list[list[TokenLogprob]] = [[] for _ in feeds]
        done = [0] * len(feeds)
        while any(count < len(feed.tokens) for count, feed in zip(done, feeds, strict=True)):
            room, work, places = self._chunk, [], []
            for place, feed in enumerate(feeds):
                count = min(room, len(feed.tokens) - done[place])
                if count:
                    work.append(self.work(feed, done[place], count))
                    places.append(place)
                    done[place] += count
                    room -= count
            result = self._runner.execute(StepPlan(work=tuple(work)))
            for place, answer in zip(places, result.work, strict=True):
                scored[place].extend(answer.prompt)
        return scored

    def compress(self, fed: Fed, size: float | int) -> None:
        """What `--kv-evict always` does at the end of a prompt, with a budget of `size`; see `SequenceBudget`."""
        budget = self._budget(fed, size)
        lanes = fed.table.num_lanes
        if budget is None or fed.table.total_rows <= budget.high(fed.seen) * lanes:
            return
        order = Eviction(fed.slot, fed.driver, budget.low(fed.seen) * lanes, fed.seen, "budget")
        (kept,) = self._runner.execute(StepPlan(evictions=(order,))).kept
        fed.table.shrink(kept, self._allocator)

    @torch.inference_mode()
    def save(self, fed: Fed) -> Saved:
        """A copy of `fed`, which must not have been compressed."""
        assert fed.table.total_rows == fed.seen * fed.table.num_lanes, "rows are missing"
        rows = self._mirror.slots_of_rows(fed.slot).flatten()
        fresh = None if self._pool.fresh is None else self._pool.fresh.saved(fed.slot)
        return Saved(fed.seen, tuple(plane.flatten(0, 1)[rows] for plane in self._planes()), fresh)

    @torch.inference_mode()
    def restore(self, saved: Saved, driver: str, num_lanes: int) -> Fed:
        """A new sequence with the rows of `saved`. `driver` must read the same notes as the one that wrote them."""
        fed = self.begin(driver, num_lanes)
        self._mirror.extend(fed.slot, fed.table.extend(saved.seen, self._allocator), saved.seen)
        fed.seen = saved.seen
        rows = self._mirror.slots_of_rows(fed.slot).flatten()
        for plane, copy in zip(self._planes(), saved.planes, strict=True):
            plane.flatten(0, 1).index_copy_(0, rows, copy)
        if self._pool.fresh is not None and saved.fresh is not None:
            self._pool.fresh.restore(fed.slot, saved.fresh)
        return fed

    def _planes(self) -> tuple[Tensor, ...]:
        return self._pool.keys, self._pool.values, self._pool.state

    def _budget(self, fed: Fed, size: float | int) -> SequenceBudget | None:
        rules = self._rules[fed.driver]
        return None if rules is None else SequenceBudget(rules, size)

    def work(self, feed: Feed, start: int, count: int) -> SequenceWork:
        """What has `count` tokens of `feed` computed, from `start` on; the caller executes it."""
        fed = feed.fed
        targets = feed.targets[start : start + count]
        work = SequenceWork(
            slot=fed.slot,
            tokens=np.array(feed.tokens[start : start + count], dtype=np.int64),
            position=fed.seen,
            policy=fed.driver,
            update=fed.table.extend(count, self._allocator),
            targets=np.array(targets, dtype=np.int64) if targets else None,
            num_top=1,
        )
        fed.seen += count
        return work
