"""What sequences cost in pages: now, at most until their next compression, and what a compression would give back."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from paged_kv.allocator import PageAllocator
from paged_kv.table import TableUpdate
from scheduler.budget import SequenceBudget
from scheduler.config import SchedulerConfig
from scheduler.plan import Eviction, EvictionReason
from scheduler.prefixes import Prefixes
from scheduler.request import GenerationRequest
from scheduler.sequence import Sequence

_Rows = TypeVar("_Rows", float, NDArray[np.float64])
_OWN_AND_CACHED = 2  # references to a page that one sequence and the prefix cache hold


class KVMemory:
    """Answers in pages, never in rows. Owns the allocator; the scheduler alone calls it."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.allocator = PageAllocator(config.num_pages, track_freed=config.debug_pages)
        self.prefixes = Prefixes(config, self.allocator)

    @property
    def num_available(self) -> int:
        """Pages that can be had now: free ones, and those that only the prefix cache holds."""
        return self.allocator.num_free + self.prefixes.cache.num_reclaimable

    def extend(self, sequence: Sequence, rows: int) -> TableUpdate:
        """Give every lane of `sequence` room for `rows` more rows. Raises OutOfPages, then nothing has changed."""
        self.prefixes.cache.make_room(sequence.table.pages_missing(rows))
        return sequence.table.extend(rows, self.allocator)

    def equal_lanes(self, rows: int) -> int:
        """Pages of a sequence with `rows` rows in every lane."""
        return self._config.num_lanes * -(-rows // self._config.page_size)

    def unequal_lanes(self, rows: int) -> int:
        """The most pages that lanes with `rows` rows on average can need, however the rows are spread."""
        lanes, page_size = self._config.num_lanes, self._config.page_size
        return (lanes * rows + lanes * (page_size - 1)) // page_size

    def likely(self, rows: _Rows) -> _Rows:
        """Pages that unequal lanes with `rows` rows on average are likely to need: the last of each is half full."""
        return self._config.num_lanes * (rows / self._config.page_size + 0.5)

    def budget_of(self, request: GenerationRequest) -> SequenceBudget | None:
        """The row budget that applies to `request`; None if it is never evicted."""
        rules = self._config.policies[request.kv_policy or self._config.default_policy]
        if rules is None:
            return None
        return SequenceBudget(rules, self._config.default_budget if request.kv_budget is None else request.kv_budget)

    def longest(self, budget: SequenceBudget | None) -> int:
        """Tokens that a sequence alone in the pool can reach: as many as fit whole, or whose budget fits."""
        usable = self.allocator.num_usable
        whole = usable // self._config.num_lanes * self._config.page_size
        limit = self._config.max_model_len
        if budget is None or whole >= limit:
            return min(limit, whole)
        lengths = range(whole, limit + 1)
        too_long = bisect_left(lengths, True, key=lambda length: self.unequal_lanes(budget.high(length) + 1) > usable)
        return max(whole, lengths.start + too_long - 1)

    def shared(self, sequence: Sequence) -> float:
        """Pages of running `sequence` that others count, too: one that n sequences read is 1 / n of a page to each."""
        return self.prefixes.cache.share_of_others(sequence.used_keys)

    def needed(self, sequence: Sequence) -> float:
        """Pages that waiting `sequence` adds to those that are promised: what others use already counts once."""
        found = 0 if self.is_streaming(sequence) else self.prefixes.found(sequence)
        whole = self.commitment(sequence)
        if not found:
            return whole
        used = self._config.num_lanes * self.prefixes.used_of(sequence, found)
        survivors = 0 if sequence.budget is None else min(used, self._most_left(sequence))  # copied before used is left
        return max(0, whole - used) + survivors

    def commitment(self, sequence: Sequence) -> float:
        """Pages to count for `sequence` at admission: its prompt while that is read, then what it can shrink to.

        Shrunk sequences stand anywhere between low and high mark, so the middle is what many of them hold. Where that
        is not enough for a while, they give up rows down to the low mark.
        """
        length = len(sequence.tokens)
        whole = self.equal_lanes(min(length + self._config.page_size, sequence.max_len))
        budget = sequence.budget
        if budget is None:
            return whole
        shrunk = min(whole, self.likely((budget.low(length) + budget.high(length)) / 2))
        if sequence.is_decoding or self.is_streaming(sequence):
            return shrunk
        return max(shrunk, self.equal_lanes(length))

    def is_streaming(self, sequence: Sequence) -> bool:
        """Whether `sequence` is compressed while it is read: by its rules, or because it no longer fits whole."""
        budget = sequence.budget
        if budget is None:
            return False
        return budget.rules.streaming or self.equal_lanes(len(sequence.tokens)) > self.allocator.num_usable

    def rows_that_fit(self, sequence: Sequence, wanted: int) -> int:
        """The most rows up to `wanted` for which every lane finds room in the pages that are free now."""
        free = self.num_available
        table = sequence.table
        if table.pages_missing(wanted) <= free:
            return wanted
        low, high = 0, wanted
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if table.pages_missing(middle) <= free else (low, middle)
        return low

    def reclaimable(self, sequence: Sequence, seen: int) -> int:
        """Pages that compressing `sequence` after `seen` tokens is sure to save; 0 if it must stay whole for now.

        Room for its next row within its own pages counts as well.
        """
        if not self._is_above_floor(sequence, seen) or not self.can_make_way(sequence):
            return 0
        shared = int((self.allocator.references(sequence.table.held()) > _OWN_AND_CACHED).sum())
        return max(0, self.held_with_room(sequence) - shared - self._least(sequence, seen))

    def squeezable(self, sequence: Sequence, seen: int) -> int:
        """As `reclaimable`, but in place: the pages that others read stay."""
        if not self._is_above_floor(sequence, seen):
            return 0
        return max(0, self.held_with_room(sequence) - self.least_in_place(sequence, seen))

    def held_with_room(self, sequence: Sequence) -> int:
        """Pages that `sequence` would hold with one more row in each lane."""
        return sequence.table.total_pages + sequence.table.pages_missing(1)

    def least_in_place(self, sequence: Sequence, seen: int) -> int:
        """Pages with which `sequence` is sure to do if it is squeezed after `seen` tokens, with a row of room."""
        return self._least(sequence, seen) + self.prefixes.shared(sequence) * self._config.num_lanes

    def _least(self, sequence: Sequence, seen: int) -> int:
        """The most pages that `sequence` can need for its budget after `seen` tokens and one more row in each lane."""
        assert sequence.budget is not None
        return self.unequal_lanes(sequence.budget.low(seen) + 1)

    def _is_above_floor(self, sequence: Sequence, seen: int) -> bool:
        """Whether rows of `sequence` may go: not of a prompt that can be read whole, nor what its budget protects."""
        budget = sequence.budget
        if budget is None or not (sequence.is_decoding or self.is_streaming(sequence)):
            return False
        if sequence.adopted is not None:  # the runner has not heard of its rows
            return False
        return sequence.table.total_rows > budget.low(seen) * self._config.num_lanes

    def exceeds_budget(self, sequence: Sequence, seen: int) -> bool:
        """Whether the rows of `sequence` stand above its high mark once `seen` tokens are computed."""
        budget = sequence.budget
        if budget is None or not (self._config.evict == "always" or budget.rules.ceiling):
            return False
        if seen < len(sequence.tokens) and not self.is_streaming(sequence):
            return False
        return sequence.table.total_rows > budget.high(seen) * self._config.num_lanes

    def can_make_way(self, sequence: Sequence) -> bool:
        """Whether `make_way` can be called: there is room for the survivors if other sequences read the same pages."""
        return not self._is_read_by_sequences(sequence) or self.num_available >= self._most_left(sequence)

    def make_way(self, sequence: Sequence) -> None:
        """Before `sequence` is compressed: see that its survivors get pages that nobody else reads.

        What others may want to read later stays readable if there is room for it beside the survivors.
        """
        needed = self._most_left(sequence)
        has_room = self.num_available >= needed
        if not has_room:
            self.prefixes.forget(sequence)
        if self._is_read_by_others(sequence) or (has_room and self.prefixes.may_publish(sequence)):
            self.prefixes.cache.make_room(needed)
            sequence.fresh = self.allocator.allocate(needed)

    def _most_left(self, sequence: Sequence) -> int:
        assert sequence.budget is not None
        return self.unequal_lanes(sequence.budget.low(len(sequence.tokens)))

    def _is_read_by_sequences(self, sequence: Sequence) -> bool:
        return bool((self.allocator.references(sequence.table.held()) > _OWN_AND_CACHED).any())

    def _is_read_by_others(self, sequence: Sequence) -> bool:
        return bool((self.allocator.references(sequence.table.held()) > 1).any())

    def compression(self, sequence: Sequence, seen: int, reason: EvictionReason) -> Eviction:
        """The order to compress `sequence` down to its budget."""
        assert sequence.slot is not None
        assert sequence.budget is not None
        rows = sequence.budget.low(seen) * self._config.num_lanes
        order = Eviction(sequence.slot, sequence.policy, rows, seen, reason)
        return order if sequence.fresh is None else replace(order, fresh=sequence.fresh)

    def squeeze(self, sequence: Sequence, seen: int) -> Eviction:
        """The order to let `sequence` give up rows in place, down to its budget."""
        pinned = self.prefixes.shared(sequence) * self._config.page_size
        return replace(self.compression(sequence, seen, "pressure"), pinned=pinned)
