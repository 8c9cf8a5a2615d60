"""What sequences cost in pages: now, at most until their next compression, and what a compression would give back."""

from __future__ import annotations

from paged_kv.allocator import PageAllocator
from scheduler.budget import SequenceBudget
from scheduler.config import SchedulerConfig
from scheduler.plan import Eviction, EvictionReason
from scheduler.request import GenerationRequest
from scheduler.sequence import Sequence


class KVMemory:
    """Answers in pages, never in rows. Owns the allocator; the scheduler alone calls it."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.allocator = PageAllocator(config.num_pages)

    def equal_lanes(self, rows: int) -> int:
        """Pages of a sequence with `rows` rows in every lane."""
        return self._config.num_lanes * -(-rows // self._config.page_size)

    def unequal_lanes(self, rows: int) -> int:
        """The most pages that lanes with `rows` rows on average can need, however the rows are spread."""
        lanes, page_size = self._config.num_lanes, self._config.page_size
        return (lanes * rows + lanes * (page_size - 1)) // page_size

    def budget_of(self, request: GenerationRequest) -> SequenceBudget | None:
        """The row budget that applies to `request`; None if it is never evicted."""
        rules = self._config.policies[request.kv_policy or self._config.default_policy]
        if rules is None:
            return None
        return SequenceBudget(rules, self._config.default_budget if request.kv_budget is None else request.kv_budget)

    def longest(self, budget: SequenceBudget | None) -> int:
        """Tokens that a sequence alone in the pool can reach: what fits whole, or the context if its budget fits."""
        usable = self.allocator.num_usable
        whole = usable // self._config.num_lanes * self._config.page_size
        limit = self._config.max_model_len
        if budget is None:
            return min(limit, whole)
        return limit if self.unequal_lanes(budget.high(limit) + 1) <= usable else min(limit, whole)

    def longest_prompt(self, budget: SequenceBudget | None) -> int:
        """Tokens of the longest prompt that can be read: a prompt is held whole, unless it is compressed on the way."""
        longest = self.longest(budget)
        if budget is not None and budget.rules.streaming:
            return longest
        return min(longest, self.allocator.num_usable // self._config.num_lanes * self._config.page_size)

    def commitment(self, sequence: Sequence) -> int:
        """Pages to count for `sequence` at admission: its prompt while that is read, then what it can shrink to."""
        length = len(sequence.tokens)
        whole = self.equal_lanes(min(length + self._config.page_size, sequence.max_len))
        budget = sequence.budget
        if budget is None:
            return whole
        shrunk = min(whole, self.unequal_lanes(budget.high(length) + 1))
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
        free = self.allocator.num_free
        table = sequence.table
        if table.pages_missing(wanted) <= free:
            return wanted
        low, high = 0, wanted
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if table.pages_missing(middle) <= free else (low, middle)
        return low

    def reclaimable(self, sequence: Sequence, seen: int, more: int = 0) -> int:
        """Pages that compressing `sequence` after `seen` tokens is sure to save; 0 if it must stay whole for now.

        `more`: rows per lane that it takes next, so that room within its own pages counts as well.
        """
        budget = sequence.budget
        if budget is None or not (sequence.is_decoding or self.is_streaming(sequence)):
            return 0
        target = budget.low(seen)
        if sequence.table.total_rows <= target * self._config.num_lanes:
            return 0
        held = sequence.table.total_pages + sequence.table.pages_missing(more)
        return max(0, held - self.unequal_lanes(target + more))

    def exceeds_budget(self, sequence: Sequence, seen: int) -> bool:
        """Whether the rows of `sequence` stand above its high mark once `seen` tokens are computed."""
        budget = sequence.budget
        if budget is None or not (self._config.evict == "always" or budget.rules.ceiling):
            return False
        if seen < len(sequence.tokens) and not self.is_streaming(sequence):
            return False
        return sequence.table.total_rows > budget.high(seen) * self._config.num_lanes

    def compression(self, sequence: Sequence, seen: int, reason: EvictionReason) -> Eviction:
        """The order to compress `sequence` down to its budget."""
        assert sequence.slot is not None
        assert sequence.budget is not None
        rows = sequence.budget.low(seen) * self._config.num_lanes
        return Eviction(sequence.slot, sequence.policy, rows, seen, reason)
