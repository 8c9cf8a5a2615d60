"""Decides, step by step, which tokens of which sequences are computed and what is evicted."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from paged_kv.table import PageTable
from scheduler.admission import Admission, checked_budget
from scheduler.batch import StepBuilder
from scheduler.config import SchedulerConfig
from scheduler.errors import QueueFull, RequestRejected
from scheduler.forecast import Forecast
from scheduler.ledger import Ledger
from scheduler.memory import KVMemory
from scheduler.plan import StepPlan, StepResult, WorkResult
from scheduler.queue import WaitingQueue
from scheduler.request import FinishReason, GenerationRequest, TokenEvent
from scheduler.sequence import Ending, Sequence
from scheduler.stats import EngineStats
from scheduler.stopping import ending_of


class Scheduler:
    """Owns all sequences, their tables and the pages. Every call comes from one thread, the event loop's.

    A step is `plan()`, executed elsewhere, then `apply(result)` or `fail(error)`. Between the two, sequences may be
    added and ended; those in the plan are released only when its outcome is known. What the outside must hear about
    collects in an outbox, see `take_events`.
    """

    def __init__(self, config: SchedulerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.memory = KVMemory(config)
        self._clock = clock
        self._arrivals = count()
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []
        self._ledger = Ledger(config.max_num_seqs, self.memory)
        self._forecast = Forecast(self.memory)
        self._plan: StepPlan | None = None
        self._in_flight: dict[int, Sequence] = {}
        self._outbox: list[tuple[Sequence, TokenEvent]] = []
        self._attempts = 0  # to plan a step; one that fails and is made again counts once

    def add(self, request: GenerationRequest) -> list[Sequence]:
        """Queue the choices of `request`. Raises RequestRejected or QueueFull, then nothing was queued."""
        limit = self.config.max_num_queued
        if limit is not None and request.n > limit:
            raise RequestRejected(
                f"n: {request.n} choices exceed the queue, which holds {limit}; ask for fewer", param="n"
            )
        if limit is not None and len(self._waiting) + request.n > limit:
            raise QueueFull(f"{len(self._waiting)} requests wait already; try again later")
        budget = checked_budget(request, self.config, self.memory)
        rank = request.priority if self.config.order == "priority" else 0
        sequences = [
            Sequence(
                request=request,
                index=index,
                order=(rank, next(self._arrivals)),
                policy=request.kv_policy or self.config.default_policy,
                budget=budget,
                max_len=min(self.memory.longest(budget), len(request.prompt) + request.params.max_tokens),
                arrived=self._clock(),
                tokens=list(request.prompt),
                table=PageTable(self.config.num_lanes, self.config.page_size),
                constraint=None if request.grammar is None else request.grammar.begin(),
            )
            for index in range(request.n)
        ]
        for sequence in sequences:
            sequence.leader = None if sequence is sequences[0] else sequences[0]
            self._waiting.add(sequence)
        return sequences

    def end(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """End `sequence` now, or, if it is part of the step under way, as soon as that is over. Safe to repeat."""
        if sequence.ending is not None:
            return
        sequence.ending = Ending(reason, error=error)
        if sequence.slot is None or sequence.slot not in self._in_flight:
            self._retire(sequence, TokenEvent(sequence.index))

    def plan(self) -> StepPlan | None:
        """The next step, or None if there is nothing to do. The step before it must have been applied or failed."""
        assert self._plan is None, "a step is under way"
        builder = self._planned()
        while builder.is_empty and self._running:
            # Only half-read prompts are left and none finds a page: the newest makes room for the others.
            self._preempt(self._running[-1])
            builder = self._planned(again=bool(self._running))
        if builder.is_empty:
            return None
        self._in_flight = builder.sequences
        self._plan = builder.build(self._ledger)
        return self._plan

    def apply(self, result: StepResult) -> None:
        """Take in the outcome of the step under way: tokens, compressed lanes, ended sequences."""
        plan, sequences = self._close_step()
        moved = {eviction.slot for eviction in plan.all_evictions if not eviction.fresh.size}
        for work in plan.work:
            sequences[work.slot].num_computed += work.tokens.size
            if work.slot not in moved:
                self.memory.prefixes.publish(sequences[work.slot])
        for eviction, kept in zip(plan.all_evictions, result.kept, strict=True):
            self._ledger.compress(sequences[eviction.slot], kept, eviction.reason)
        for work, outcome in zip(plan.work, result.work, strict=True):
            if sequences[work.slot].ending is None:
                self._take_in(sequences[work.slot], outcome)
        for sequence in sequences.values():
            if sequence.ending is not None and sequence.slot is not None:
                self._retire(sequence, TokenEvent(sequence.index))

    def fail(self, error: str) -> set[str]:
        """The step under way raised: end the sequences in it with `error`; their pages come back. Returns their ids."""
        _, sequences = self._close_step()
        for sequence in sequences.values():
            sequence.ending = sequence.ending or Ending("error", error=error)
            self._retire(sequence, TokenEvent(sequence.index))
        return {sequence.request.request_id for sequence in sequences.values()}

    def end_all(self, error: str) -> None:
        """End every sequence with `error`, whatever state a failure left; a step under way is forgotten."""
        self._plan, self._in_flight = None, {}
        for sequence in [*self._running, *self._waiting]:
            sequence.ending = sequence.ending or Ending("error", error=error)
            self._retire(sequence, TokenEvent(sequence.index))

    def take_events(self) -> list[tuple[Sequence, TokenEvent]]:
        """What happened since the last call, in order."""
        events, self._outbox = self._outbox, []
        return events

    @property
    def has_work(self) -> bool:
        """Whether any sequence runs or waits."""
        return bool(self._running) or len(self._waiting) > 0

    def stats(self) -> EngineStats:
        """Gauges and totals now."""
        return self._ledger.stats(self._running, len(self._waiting))

    def check_integrity(self) -> None:
        """Assert that pages, tables, slots and queues agree; cheap enough for tests to call after every step."""
        for sequence in self._running:
            sequence.table.check_integrity()
        cache = self.memory.prefixes.cache
        cache.check_integrity([sequence.used_keys for sequence in self._running])
        held = [sequence.table.held() for sequence in self._running]
        held += [sequence.fresh for sequence in self._running if sequence.fresh is not None]
        self.memory.allocator.check_integrity([*held, *cache.held()])
        self._ledger.check_integrity(self._running)
        assert self._running == sorted(self._running, key=lambda sequence: sequence.order)
        for sequence in self._waiting:
            assert sequence.slot is None
            assert sequence.table.total_pages == 0, "a waiting sequence holds pages"

    def _planned(self, *, again: bool = False) -> StepBuilder:
        """What can be done now. `again`: what was preempted in the last attempt may not enter in this one."""
        self._attempts += not again
        builder = StepBuilder(self.config, self.memory)
        self._plan_decodes(builder)
        self._plan_prompts(builder)
        return builder

    def _plan_decodes(self, builder: StepBuilder) -> None:
        """One token for each sequence that has read its prompt, oldest first; memory's ladder where pages run short."""
        for sequence in [sequence for sequence in self._running if sequence.is_decoding]:
            while sequence.slot is not None and not builder.add(sequence, 1):
                if builder.reclaim(sequence, 1, self._running):
                    break
                self._preempt(next(other for other in reversed(self._running) if not builder.has_work_for(other)))

    def _plan_prompts(self, builder: StepBuilder) -> None:
        """Fill the step with prompt chunks: first come, first served, except that short ones may pass on half of it."""
        admission = Admission(self.memory, self._forecast, self._waiting, self._running)
        candidates = [sequence for sequence in self._running if not sequence.is_decoding]
        candidates += [sequence for sequence in admission.candidates if sequence.preempted_in != self._attempts]
        short, reserve = builder.tokens_left // 4, builder.tokens_left // 2
        for sequence in candidates:
            if sequence.gap <= min(short, reserve) and self._add_chunk(builder, admission, sequence):
                reserve -= sequence.gap
        for sequence in candidates:
            if builder.tokens_left == 0:
                break
            if not builder.has_work_for(sequence):
                self._add_chunk(builder, admission, sequence)

    def _add_chunk(self, builder: StepBuilder, admission: Admission, sequence: Sequence) -> bool:
        if sequence.slot is None:
            if not self._ledger.has_slot or not admission.may_enter(sequence):
                return False
            self._enter(sequence)
        wanted = builder.wanted(sequence)
        added = builder.add(sequence, wanted)
        if added < wanted:
            builder.reclaim(sequence, wanted - added, self._running)
        return added > 0

    def _enter(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)
        self._ledger.enter(sequence)
        insort(self._running, sequence, key=lambda other: other.order)
        if sequence.first_scheduled is None:
            sequence.first_scheduled = self._clock()

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._ledger.preempt(sequence)
        sequence.preempted_in = self._attempts
        self._waiting.add(sequence)

    def _close_step(self) -> tuple[StepPlan, dict[int, Sequence]]:
        assert self._plan is not None, "no step is under way"
        plan, sequences = self._plan, self._in_flight
        self._plan, self._in_flight = None, {}
        return plan, sequences

    def _take_in(self, sequence: Sequence, outcome: WorkResult) -> None:
        """Add what a step computed to `sequence`; the outside hears of it once the prompt is read."""
        if outcome.error is not None:
            sequence.ending = Ending("error", error=outcome.error)
            return
        if sequence.scores_prompt:
            known = sequence.prompt_logprobs
            known.extend(outcome.prompt if known else (None, *outcome.prompt))
        if sequence.gap > 0:
            return
        is_first = sequence.num_generated == 0
        event = TokenEvent(
            index=sequence.index,
            tokens=() if outcome.token is None else (outcome.token,),
            logprobs=() if outcome.logprob is None else (outcome.logprob,),
            prompt_logprobs=tuple(sequence.prompt_logprobs) if is_first and sequence.prompt_logprobs else None,
        )
        sequence.tokens.extend(event.tokens)
        if is_first:
            sequence.first_token = self._clock()
        sequence.ending = ending_of(sequence, self.config.eos_token_ids)
        if sequence.ending is None:
            self._outbox.append((sequence, event))
        else:
            self._retire(sequence, event)

    def _retire(self, sequence: Sequence, event: TokenEvent) -> None:
        """Take `sequence`, which has an ending, out of the books and send `event` as its last one."""
        finish = sequence.finish(self._clock())
        if sequence.slot is None:
            self._waiting.remove(sequence)
        else:
            self._forecast.note_end(sequence)
            self._running.remove(sequence)
            self._ledger.leave(sequence)
        self._outbox.append((sequence, replace(event, finish=finish)))
