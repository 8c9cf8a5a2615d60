"""Collects one step: work under a token limit, and the evictions that go with it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from scheduler.config import SchedulerConfig
from scheduler.ledger import Ledger
from scheduler.memory import KVMemory
from scheduler.plan import Eviction, EvictionReason, SampleOrder, SequenceWork, StepPlan
from scheduler.prefixes import take_adopted
from scheduler.pressure import Pressure
from scheduler.sequence import Sequence
from scheduler.stopping import end_tokens


class StepBuilder:
    """A step in the making; lives for one call of `Scheduler.plan`."""

    def __init__(self, config: SchedulerConfig, memory: KVMemory) -> None:
        self.tokens_left = config.max_num_batched_tokens
        self.sequences: dict[int, Sequence] = {}
        self._config = config
        self._memory = memory
        self._work: dict[int, SequenceWork] = {}
        self._evictions: dict[int, EvictionReason] = {}
        self._pages_wanted = 0
        self._pages_promised = 0
        self._pressure: Pressure | None = None

    @property
    def is_empty(self) -> bool:
        """True if nothing would be computed or evicted."""
        return not self.sequences

    def has_work_for(self, sequence: Sequence) -> bool:
        """Whether `sequence` is computed in this step."""
        return sequence.slot in self._work

    def wanted(self, sequence: Sequence) -> int:
        """Tokens of `sequence` that this step could compute if pages were no matter."""
        count = min(sequence.gap, self.tokens_left)
        budget = sequence.budget
        if budget is not None and self._memory.is_streaming(sequence):
            mark = budget.high(sequence.num_computed + count)
            count = min(count, max(1, mark + 1 - -(-sequence.table.total_rows // sequence.table.num_lanes)))
        return count

    def add(self, sequence: Sequence, count: int) -> int:
        """Compute up to `count` more tokens of `sequence`, as many as free pages allow; returns how many."""
        count = self._memory.rows_that_fit(sequence, count)
        if count < 1:
            return 0
        work = self._work_of(sequence, count)
        self.tokens_left -= count
        self._work[work.slot] = work
        self.sequences[work.slot] = sequence
        exceeds = self._is_open(sequence) and self._memory.exceeds_budget(sequence, self._seen(sequence))
        if exceeds and self._memory.can_make_way(sequence):
            self._pages_promised += self._gain(sequence)
            self._evict(sequence, "budget")
        return count

    def reclaim(self, starved: Sequence, rows: int, running: Iterable[Sequence]) -> bool:
        """Have sequences compressed after this step until `starved` can take `rows` more; False if none can give."""
        self._pages_wanted += starved.table.pages_missing(rows)
        if self._pages_promised < self._pages_wanted:
            self._squeeze(starved, running)
        if self._pages_promised < self._pages_wanted:
            self._copy_out(running)
        return self._pages_promised > 0

    def build(self, ledger: Ledger) -> StepPlan:
        """The frozen plan."""
        return StepPlan(
            work=tuple(self._work.values()),
            evictions=tuple(self._eviction(slot, reason) for slot, reason in self._evictions.items()),
            contest=None if self._pressure is None else self._pressure.contest(self._memory, self._seen),
            released=ledger.take_released(),
            freed_pages=self._memory.allocator.take_freed(),
        )

    def _squeeze(self, starved: Sequence, running: Iterable[Sequence]) -> None:
        """Have sequences compete for the pages they hold, so that as many fall free as are missing.

        For a prompt that is read whole, better now for all its chunks than again for each of them.
        """
        missing = self._pages_wanted - self._pages_promised
        if self._pressure is None:
            open_ones = [sequence for sequence in running if self._is_open(sequence)]
            gains = [(self._memory.squeezable(sequence, self._seen(sequence)), sequence) for sequence in open_ones]
            self._pressure = Pressure(gains, missing, self._memory.allocator.num_usable)
            for slot, sequence in self._pressure.members.items():
                self._memory.prefixes.forget(sequence, self._memory.prefixes.shared(sequence))
                self.sequences[slot] = sequence
        soon = 0 if self._memory.is_streaming(starved) else starved.table.pages_missing(starved.gap)
        self._pages_promised += self._pressure.give(missing, soon)

    def _copy_out(self, running: Iterable[Sequence]) -> None:
        """Have sequences that read the same pages leave them for fewer of their own, until no page is missing."""
        gains = [(self._gain(sequence), sequence) for sequence in running]
        for gain, sequence in sorted(gains, key=lambda pair: -pair[0]):
            if gain == 0 or self._pages_promised >= self._pages_wanted:
                break
            if self._memory.can_make_way(sequence):  # another may have taken the room since
                self._evict(sequence, "pressure")
                self._pages_promised += gain

    def _evict(self, sequence: Sequence, reason: EvictionReason) -> None:
        assert sequence.slot is not None
        self._memory.make_way(sequence)
        self._evictions[sequence.slot] = reason
        self.sequences[sequence.slot] = sequence

    def _seen(self, sequence: Sequence) -> int:
        work = self._work.get(sequence.slot) if sequence.slot is not None else None
        return sequence.num_computed + (work.tokens.size if work else 0)

    def _is_open(self, sequence: Sequence) -> bool:
        """Whether nothing is evicted of `sequence` in this step yet."""
        competes = self._pressure is not None and sequence.slot in self._pressure.members
        return sequence.slot not in self._evictions and not competes

    def _gain(self, sequence: Sequence) -> int:
        return self._memory.reclaimable(sequence, self._seen(sequence)) if self._is_open(sequence) else 0

    def _eviction(self, slot: int, reason: EvictionReason) -> Eviction:
        sequence = self.sequences[slot]
        return self._memory.compression(sequence, self._seen(sequence), reason)

    def _work_of(self, sequence: Sequence, count: int) -> SequenceWork:
        assert sequence.slot is not None
        start, end = sequence.num_computed, sequence.num_computed + count
        targets = None
        if sequence.scores_prompt:
            targets = np.array(sequence.tokens[start + 1 : min(end + 1, sequence.num_prompt)], dtype=np.int64)
        update, reused = take_adopted(sequence, self._memory.extend(sequence, count))
        return SequenceWork(
            slot=sequence.slot,
            tokens=np.array(sequence.tokens[start:end], dtype=np.int64),
            position=start,
            policy=sequence.policy,
            update=update,
            reused=reused,
            sample=self._sample_order(sequence) if end == len(sequence.tokens) else None,
            targets=targets,
            num_top=sequence.request.params.prompt_logprobs or 0,
        )

    def _sample_order(self, sequence: Sequence) -> SampleOrder | None:
        params = sequence.request.params
        if params.max_tokens == 0:
            return None
        penalised = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
        needs_output = penalised or params.bad_words or sequence.constraint is not None
        early = sequence.num_generated < params.min_tokens
        return SampleOrder(
            params=params,
            choice=sequence.index,
            step=sequence.num_generated,
            prompt=sequence.request.prompt if penalised else (),
            output=tuple(sequence.tokens[sequence.num_prompt :]) if needs_output else (),
            banned=end_tokens(params, self._config.eos_token_ids) if early else (),
            constraint=sequence.constraint,
        )
