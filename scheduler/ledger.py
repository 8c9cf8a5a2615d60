"""Slots and pages on their way in and out, and the totals of all that was ever evicted, freed or preempted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many

from paged_kv.table import Counts
from scheduler.memory import KVMemory
from scheduler.plan import EvictionReason
from scheduler.sequence import Sequence
from scheduler.stats import EngineStats


class Ledger:
    """Owns the table slots and the running totals; part of the scheduler, which alone calls it.

    A slot given back is free at once, but the runner must hear of it before it sees the slot again: `take_released`
    goes into the next plan.
    """

    def __init__(self, num_slots: int, memory: KVMemory) -> None:
        self._num_slots = num_slots
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._released: list[int] = []
        self._memory = memory
        self._pages_freed = 0
        self._rows_evicted = 0
        self._preemptions = 0
        self._compressions: Counter[EvictionReason] = Counter({"budget": 0, "pressure": 0})

    @property
    def has_slot(self) -> bool:
        """Whether another sequence may run."""
        return bool(self._free_slots)

    def enter(self, sequence: Sequence) -> None:
        """Give `sequence` a slot, and the rows of its tokens that are there already."""
        assert sequence.slot is None
        sequence.slot = self._free_slots.pop()
        if not self._memory.is_streaming(sequence):  # what is found would be in the way: it cannot be held whole
            self._memory.prefixes.enter(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Take slot and pages from `sequence`."""
        assert sequence.slot is not None
        self._memory.prefixes.release(sequence)
        sequence.table.clear(self._memory.allocator)
        if sequence.fresh is not None:
            self._memory.allocator.release(sequence.fresh)
        sequence.adopted = sequence.fresh = None
        self._released.append(sequence.slot)
        self._free_slots.append(sequence.slot)
        sequence.slot = None

    def preempt(self, sequence: Sequence) -> None:
        """Take slot and pages from `sequence`, which starts over later from the tokens it has."""
        self.leave(sequence)
        self._preemptions += 1
        sequence.num_preemptions += 1
        sequence.num_computed = 0
        if len(sequence.prompt_logprobs) < sequence.num_prompt:
            sequence.prompt_logprobs.clear()

    def compress(self, sequence: Sequence, kept: Counts, reason: EvictionReason) -> None:
        """Note that only the first `kept` rows per lane of `sequence` are left, and release the pages behind them."""
        evicted = sequence.table.total_rows - int(kept.sum())
        held, fresh, allocator = sequence.table.total_pages, sequence.fresh, self._memory.allocator
        if fresh is None:
            sequence.table.shrink(kept, allocator)
        else:
            self._memory.prefixes.release(sequence)
            sequence.table.replace(kept, fresh, allocator)
            sequence.fresh = None
        sequence.rows_evicted += evicted
        self._rows_evicted += evicted
        self._pages_freed += held - sequence.table.total_pages
        self._compressions[reason] += evicted > 0

    def take_released(self) -> tuple[int, ...]:
        """Slots given back since the last call."""
        released, self._released = tuple(self._released), []
        return released

    def stats(self, running: Many[Sequence], num_waiting: int) -> EngineStats:
        """Gauges and totals now."""
        return EngineStats(
            num_running=len(running),
            num_waiting=num_waiting,
            pages_total=self._memory.allocator.num_usable,
            pages_free=self._memory.num_available,
            rows_kept=sum(sequence.table.total_rows for sequence in running),
            rows_evicted_total=self._rows_evicted,
            pages_freed_total=self._pages_freed,
            preemptions_total=self._preemptions,
            compressions_total={str(reason): total for reason, total in self._compressions.items()},
            pages_cached=self._memory.prefixes.cache.num_reclaimable,
            prefix_tokens_asked_total=self._memory.prefixes.tokens_asked,
            prefix_tokens_found_total=self._memory.prefixes.tokens_found,
        )

    def check_integrity(self, running: Many[Sequence]) -> None:
        """Assert that each slot is free or held by one running sequence."""
        taken = [sequence.slot for sequence in running]
        assert sorted([*self._free_slots, *(slot for slot in taken if slot is not None)]) == list(
            range(self._num_slots)
        )
