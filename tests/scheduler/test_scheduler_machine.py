"""The scheduler under random arrivals, lengths, budgets, aborts and failing steps: nothing lost, nothing stuck."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scheduler.errors import RequestRejected
from scheduler.scheduler import Scheduler
from scheduler.sequence import Sequence
from tests.scheduler.fakes import EOS, LANES, FakeRunner, Outcome, config, follows, request, said, step


class SchedulerMachine(RuleBasedStateMachine):
    """Drives one scheduler over a pool so small that every rung of the memory ladder is used."""

    def __init__(self) -> None:
        super().__init__()
        self.names = count()
        self.sequences: list[Sequence] = []
        self.outcome = Outcome()
        self.empty_steps = 0

    @initialize(
        rows=st.integers(48, 240),
        page_size=st.sampled_from([1, 4, 16]),
        spare=st.integers(1, LANES),
        uniform=st.booleans(),
        evict=st.sampled_from(["pressure", "always"]),
        order=st.sampled_from(["fcfs", "priority"]),
        policy=st.sampled_from(["full", "lossy", "paper"]),
        seed=st.integers(0, 1000),
        eos_every=st.integers(3, 500),
        prefix_caching=st.booleans(),
    )
    def start(
        self,
        rows: int,
        page_size: int,
        spare: int,
        uniform: bool,
        evict: str,
        order: str,
        policy: str,
        seed: int,
        eos_every: int,
        prefix_caching: bool,
    ) -> None:
        changes = {
            "evict": evict,
            "order": order,
            "default_policy": policy,
            "page_size": page_size,
            "prefix_caching": prefix_caching,
        }
        pages = LANES * (rows // page_size) + spare
        self.scheduler = Scheduler(config(num_pages=pages, default_budget=9, **changes))
        self.eos_every = eos_every
        self.runner = FakeRunner(seed, lambda _, row: self.draw(row), page_size, uniform=uniform)

    def draw(self, row: int) -> int:
        """The token that follows a text whose last row says `row`."""
        return EOS if row % self.eos_every == 0 else row % 3

    @rule(
        length=st.integers(1, 120),
        max_tokens=st.integers(0, 190),
        n=st.integers(1, 3),
        policy=st.sampled_from([None, "full", "lossy", "paper"]),
        budget=st.sampled_from([None, 0.3, 7, 20]),
        priority=st.integers(-1, 1),
        diverges=st.integers(0, 120),
        salt=st.sampled_from([None, None, "other"]),
    )
    def arrive(
        self,
        length: int,
        max_tokens: int,
        n: int,
        policy: str | None,
        budget: float | int | None,
        priority: int,
        diverges: int,
        salt: str | None,
    ) -> None:
        wanted = request(
            str(next(self.names)), length, max_tokens, n=n, kv_policy=policy, kv_budget=budget, priority=priority
        )
        name = int(wanted.request_id) + 1000
        prompt = tuple(token if place < diverges else name for place, token in enumerate(wanted.prompt))
        wanted = replace(wanted, prompt=prompt, cache_salt=salt)
        with suppress(RequestRejected):
            self.sequences += self.scheduler.add(wanted)

    @rule(times=st.integers(1, 15))
    def run(self, times: int) -> None:
        for _ in range(times):
            plan = step(self.scheduler, self.runner, self.outcome)
            if plan is None:
                assert not self.scheduler.has_work, "work is left, but nothing is planned"
                return
            self.empty_steps = self.empty_steps + 1 if not plan.work else 0
            assert self.empty_steps <= 1, "two steps in a row computed nothing"
            assert plan.num_tokens <= self.scheduler.config.max_num_batched_tokens

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.sequences:
            self.scheduler.end(data.draw(st.sampled_from(self.sequences)), "abort")
            self.outcome.take(self.scheduler.take_events())

    @rule(data=st.data())
    def abort_in_flight(self, data: st.DataObject) -> None:
        plan = self.scheduler.plan()
        if plan is None:
            return
        for sequence in data.draw(st.lists(st.sampled_from(self.sequences), max_size=3)):
            self.scheduler.end(sequence, "abort")
        self.scheduler.apply(self.runner.execute(plan))
        self.outcome.take(self.scheduler.take_events())

    @rule()
    def fail(self) -> None:
        plan = self.scheduler.plan()
        if plan is not None:
            self.runner.execute(plan)
            self.scheduler.fail("a step raised")
            self.outcome.take(self.scheduler.take_events())

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()

    @invariant()
    def text_is_that_of_a_cold_engine(self) -> None:
        for sequence in self.sequences:
            row = said(sequence.request.prompt)
            for token in sequence.tokens[sequence.num_prompt :]:
                assert token == self.draw(row), "the text is another than that of a request alone"
                row = follows(row, token)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        work = sum(sequence.max_len for sequence in self.sequences)
        for _ in range(20 * (work + 1)):
            if step(self.scheduler, self.runner, self.outcome) is None:
                break
        assert not self.scheduler.has_work, "a request did not end within its bound of steps"
        assert len(self.outcome.finished) == len(self.sequences), "every choice ends exactly once"
        assert self.scheduler.stats().pages_free == self.scheduler.stats().pages_total


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
