"""A runner without a model: it checks every plan against its own books and answers from a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

import numpy as np

from paged_kv.table import Counts
from scheduler.budget import EvictionRules
from scheduler.config import SchedulerConfig
from scheduler.plan import Contest, Eviction, SequenceWork, StepPlan, StepResult, WorkResult
from scheduler.request import GenerationRequest, SamplingParams, TokenEvent, TokenLogprob
from scheduler.scheduler import Scheduler
from scheduler.sequence import Sequence

LANES = 4
PAGE_SIZE = 4
EOS = 99


def config(**changes: object) -> SchedulerConfig:
    """A small pool in which memory is soon short."""
    settings: dict[str, object] = {
        "num_lanes": LANES,
        "num_pages": 161,
        "page_size": PAGE_SIZE,
        "max_model_len": 200,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 32,
        "policies": {
            "full": None,
            "lossy": EvictionRules(min_rows=6),
            "paper": EvictionRules(min_rows=4, drop=0.5, ceiling=True, streaming=True),
        },
        "default_policy": "full",
        "default_budget": 0.25,
        "eos_token_ids": (EOS,),
        "debug_pages": True,
    }
    return SchedulerConfig(**{**settings, **changes})  # type: ignore[arg-type]


def request(name: str, length: int, max_tokens: int, **changes: object) -> GenerationRequest:
    """A prompt of `length` tokens; `params` in `changes` replaces the greedy ones."""
    settings: dict[str, object] = {"params": SamplingParams(max_tokens=max_tokens, temperature=0.0)}
    prompt = tuple(range(1, length + 1))
    return GenerationRequest(request_id=name, prompt=prompt, **{**settings, **changes})  # type: ignore[arg-type]


def follows(before: int, token: int) -> int:
    """What a row says of its token and all before it, from what the row before says."""
    return (before * 1_000_003 + token + 1) % (2**61 - 1)


def said(tokens: Iterable[int]) -> int:
    """What the last row of a text says."""
    return reduce(follows, tokens, 0)


class FakeRunner:
    """Keeps tables and rows as a runner would, asserts that each plan is consistent with them, draws `next_token`.

    A row says what its token and all before it are, because it is made from the row before it, read through the table:
    a page in a wrong place or with wrong rows changes all that follows. `next_token` is asked with the work and with
    what its last row says. Compressed lanes end with equal counts if `uniform`, else with counts drawn at random.
    """

    def __init__(
        self,
        seed: int = 0,
        next_token: Callable[[SequenceWork, int], int] = lambda work, row: 7,
        page_size: int = PAGE_SIZE,
        *,
        uniform: bool = False,
    ) -> None:
        self._page_size = page_size
        self._uniform = uniform
        self.kept: dict[int, Counts] = {}
        self.pages: dict[int, dict[tuple[int, int], int]] = {}
        self.computed: dict[int, int] = {}
        self.plans: list[StepPlan] = []
        self._rows: dict[tuple[int, int], int] = {}  # by page and offset
        self._random = np.random.default_rng(seed)
        self._next_token = next_token

    def execute(self, plan: StepPlan) -> StepResult:
        """See `scheduler.engine.Runner`."""
        self.plans.append(plan)
        for slot in plan.released:
            for books in (self.kept, self.pages, self.computed):
                books.pop(slot, None)
        freed = set(plan.freed_pages.tolist())
        self._rows = {place: row for place, row in self._rows.items() if place[0] not in freed}
        work = tuple(self._compute(item) for item in plan.work)
        kept = tuple(self._evict(eviction) for eviction in plan.evictions)
        if plan.contest is not None:
            kept += self._squeeze(plan.contest)
        for pages in self.pages.values():
            assert len(pages) == len(set(pages.values())), "a page stands in a table twice"
        return StepResult(work, kept)

    def last_row(self, slot: int, lane: int = 0) -> int:
        """What the newest row of a lane says; 0 where there is none."""
        kept = int(self.kept[slot][lane])
        return self._read(slot, lane, kept - 1) if kept else 0

    def _compute(self, item: SequenceWork) -> WorkResult:
        slot, count = item.slot, item.tokens.size
        assert count > 0
        assert item.position == self.computed.get(slot, 0) + item.reused, "tokens are computed in order, none twice"
        assert not item.reused or item.position == item.reused, "only the beginning of a text is reused"
        self.computed[slot] = item.position + count
        kept = self.kept.setdefault(slot, np.zeros(LANES, dtype=np.int32))
        pages = self.pages.setdefault(slot, {})
        for lane, column, page in zip(item.update.lanes, item.update.columns, item.update.pages, strict=True):
            assert (lane, column) not in pages
            pages[int(lane), int(column)] = int(page)
        kept += item.reused
        before = [self.last_row(slot, lane) for lane in range(LANES)]
        assert len(set(before)) == 1, "lanes differ in what they read"
        kept += count
        for lane in range(LANES):
            columns = {column for owner, column in pages if owner == lane}
            assert columns == set(range(-(-int(kept[lane]) // self._page_size))), "a lane has the pages its rows need"
            row = before[lane]
            for place, token in enumerate(item.tokens.tolist(), start=int(kept[lane]) - count):
                row = follows(row, token)
                self._write(slot, lane, place, row)
        token = None if item.sample is None else self._next_token(item, self.last_row(slot))
        targets = () if item.targets is None else item.targets
        return WorkResult(token, prompt=tuple(TokenLogprob(int(target), -1.0) for target in targets))

    def _evict(self, eviction: Eviction) -> Counts:
        """Choose how many rows each lane keeps, as a policy would; the newest is among them."""
        kept = self.kept[eviction.slot]
        assert 0 < eviction.keep_rows < kept.sum(), "an eviction that evicts nothing is a waste"
        return self._keep(eviction, self._fewer(kept, eviction.keep_rows))

    def _fewer(self, kept: Counts, rows: int, pinned: int = 0) -> Counts:
        """`rows` of `kept` in all, or all that are pinned and the newest if those are more."""
        least = pinned + (kept > pinned)
        left = np.maximum(least, np.minimum(kept, rows // LANES)) if self._uniform else kept.copy()
        while left.sum() > rows and (left > least).any():
            lane = int(self._random.choice(np.flatnonzero(left > least)))
            left[lane] -= min(int(left[lane] - least[lane]), int(left.sum()) - rows, 5)
        return left

    def _squeeze(self, contest: Contest) -> tuple[Counts, ...]:
        """Let members drawn at random lose rows, as far as each may, until the pages suffice."""
        assert len({member.slot for member in contest.members}) == len(contest.members)
        left = [self.kept[member.slot].copy() for member in contest.members]
        for place in self._random.permutation(len(left)):
            for rows in range(int(left[place].sum()), contest.members[place].keep_rows - 1, -1):
                if sum(int((each // self._page_size + 1).sum()) for each in left) <= contest.max_pages:
                    break
                left[place] = self._fewer(left[place], rows, contest.members[place].pinned)
        pages = sum(int((each // self._page_size + 1).sum()) for each in left)
        assert pages <= contest.max_pages, "members cannot give what was promised"
        return tuple(self._keep(member, each) for member, each in zip(contest.members, left, strict=True))

    def _keep(self, eviction: Eviction, left: Counts) -> Counts:
        """Move the first rows of each lane and its newest together."""
        slot, kept = eviction.slot, self.kept[eviction.slot]
        assert eviction.seen == self.computed[slot]
        survivors = [
            [self._read(slot, lane, row) for row in (*range(int(left[lane]) - 1), int(kept[lane]) - 1)]
            for lane in range(LANES)
        ]
        self.kept[slot] = left
        self._place(slot, left, eviction.fresh.tolist())
        for lane, rows in enumerate(survivors):
            for place, row in enumerate(rows):
                self._write(slot, lane, place, row)
        return left.copy()

    def _place(self, slot: int, left: Counts, fresh: list[int]) -> None:
        """Drop the pages that `left` rows per lane do not need, or take `fresh` ones in place of all."""
        needed = [(lane, column) for lane in range(LANES) for column in range(-(-int(left[lane]) // self._page_size))]
        held = self.pages[slot]
        self.pages[slot] = dict(zip(needed, fresh, strict=False)) if fresh else {place: held[place] for place in needed}
        assert len(self.pages[slot]) == len(needed), "there are too few fresh pages"

    def _read(self, slot: int, lane: int, row: int) -> int:
        page = self.pages[slot][lane, row // self._page_size]
        return self._rows[page, row % self._page_size]

    def _write(self, slot: int, lane: int, row: int, content: int) -> None:
        page = self.pages[slot][lane, row // self._page_size]
        others = (pages.values() for owner, pages in self.pages.items() if owner != slot)
        place = page, row % self._page_size
        assert self._rows.get(place) == content or not any(page in held for held in others), "others read this page"
        self._rows[place] = content


class Outcome:
    """What the events of each sequence added up to."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.finished: dict[tuple[str, int], TokenEvent] = {}

    def take(self, events: Iterable[tuple[Sequence, TokenEvent]]) -> None:
        """Add `events`; a second terminal event, or one behind it, is an error."""
        for sequence, event in events:
            key = (sequence.request.request_id, event.index)
            assert key not in self.finished, "an event behind the terminal one"
            self.tokens.setdefault(key, []).extend(event.tokens)
            if event.finish is not None:
                self.finished[key] = event

    def reason(self, name: str, index: int = 0) -> str:
        """Why a choice ended."""
        finish = self.finished[name, index].finish
        assert finish is not None
        return finish.reason


def step(scheduler: Scheduler, runner: FakeRunner, outcome: Outcome) -> StepPlan | None:
    """One step with all its checks; None if there was nothing to do."""
    plan = scheduler.plan()
    if plan is not None:
        scheduler.apply(runner.execute(plan))
    outcome.take(scheduler.take_events())
    scheduler.check_integrity()
    return plan


def run(scheduler: Scheduler, runner: FakeRunner, outcome: Outcome | None = None, limit: int = 5000) -> Outcome:
    """Step until nothing is left."""
    outcome = outcome or Outcome()
    for _ in range(limit):
        if step(scheduler, runner, outcome) is None:
            assert not scheduler.has_work, "work is left, but no step is planned"
            return outcome
    raise AssertionError(f"not done after {limit} steps")
