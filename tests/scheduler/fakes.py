"""A runner without a model: it checks every plan against its own books and answers from a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from paged_kv.table import Counts
from scheduler.budget import EvictionRules
from scheduler.config import SchedulerConfig
from scheduler.plan import Eviction, SequenceWork, StepPlan, StepResult, WorkResult
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


class FakeRunner:
    """Keeps tables as a runner would, asserts that each plan is consistent with them, draws `next_token(work)`.

    Compressed lanes end with equal counts if `uniform`, else with counts drawn at random.
    """

    def __init__(
        self,
        seed: int = 0,
        next_token: Callable[[SequenceWork], int] = lambda work: 7,
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
        self._random = np.random.default_rng(seed)
        self._next_token = next_token

    def execute(self, plan: StepPlan) -> StepResult:
        """See `scheduler.engine.Runner`."""
        self.plans.append(plan)
        for slot in plan.released:
            for books in (self.kept, self.pages, self.computed):
                books.pop(slot, None)
        work = tuple(self._compute(item) for item in plan.work)
        kept = tuple(self._evict(eviction) for eviction in plan.evictions)
        held = [page for pages in self.pages.values() for page in pages.values()]
        assert len(held) == len(set(held)), "two lanes share a page"
        return StepResult(work, kept)

    def _compute(self, item: SequenceWork) -> WorkResult:
        slot, count = item.slot, item.tokens.size
        assert count > 0
        assert item.position == self.computed.get(slot, 0), "tokens are computed in order, none twice"
        self.computed[slot] = item.position + count
        kept = self.kept.setdefault(slot, np.zeros(LANES, dtype=np.int32))
        pages = self.pages.setdefault(slot, {})
        for lane, column, page in zip(item.update.lanes, item.update.columns, item.update.pages, strict=True):
            assert (lane, column) not in pages
            pages[int(lane), int(column)] = int(page)
        kept += count
        for lane in range(LANES):
            columns = {column for owner, column in pages if owner == lane}
            assert columns == set(range(-(-int(kept[lane]) // self._page_size))), "a lane has the pages its rows need"
        token = None if item.sample is None else self._next_token(item)
        targets = () if item.targets is None else item.targets
        return WorkResult(token, prompt=tuple(TokenLogprob(int(target), -1.0) for target in targets))

    def _evict(self, eviction: Eviction) -> Counts:
        """Choose how many rows each lane keeps, as a policy would."""
        kept = self.kept[eviction.slot]
        assert eviction.seen == self.computed[eviction.slot]
        assert 0 < eviction.keep_rows < kept.sum(), "an eviction that evicts nothing is a waste"
        left = np.minimum(kept, eviction.keep_rows // LANES) if self._uniform else kept.copy()
        while left.sum() > eviction.keep_rows:
            lane = int(self._random.choice(np.flatnonzero(left > 1)))
            left[lane] -= min(int(left[lane]) - 1, int(left.sum()) - eviction.keep_rows, 5)
        self.kept[eviction.slot] = left
        pages = self.pages[eviction.slot]
        for lane, column in list(pages):
            if column >= -(-int(left[lane]) // self._page_size):
                del pages[lane, column]
        return left.copy()


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
