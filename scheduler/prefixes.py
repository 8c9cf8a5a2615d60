"""Which sequences share rows: what one has read, others need not read again."""

from __future__ import annotations

import math

import numpy as np

from paged_kv.allocator import PageAllocator
from paged_kv.prefix import PrefixCache, extend_keys
from paged_kv.table import TableUpdate
from scheduler.config import SchedulerConfig
from scheduler.sequence import Sequence


class Prefixes:
    """Owns the prefix cache and the totals of what was found in it; part of `KVMemory`.

    The keys that a sequence uses, `sequence.used_keys`, are those of its first columns. A column can be read by others
    as long as nothing of its sequence was evicted. Columns that make up blocks of tokens together are published and
    taken together.
    """

    def __init__(self, config: SchedulerConfig, allocator: PageAllocator) -> None:
        self.cache = PrefixCache(allocator, config.num_lanes)
        self.tokens_asked = 0
        self.tokens_found = 0
        self._page_size = config.page_size
        self._step = math.lcm(config.page_size, config.block) // config.page_size
        self._is_on = config.prefix_caching

    def found(self, sequence: Sequence) -> int:
        """Columns of waiting `sequence` that it can begin with. At least its last token is left to compute."""
        if not self._is_on or sequence.scores_prompt:
            return 0
        self._extend_keys(sequence, len(sequence.tokens))
        known = self.cache.match(sequence.keys[: (len(sequence.tokens) - 1) // self._page_size])
        return known - known % self._step

    def used_of(self, sequence: Sequence, found: int) -> int:
        """How many of the first `found` columns of waiting `sequence` others use now."""
        return self.cache.num_used(sequence.keys[:found])

    def waits_for_sibling(self, sequence: Sequence) -> bool:
        """Whether another choice of the same request is about to read the prompt of `sequence`."""
        leader = sequence.leader
        if leader is None or not self._is_on or sequence.num_prompt <= self._page_size:
            return False
        return leader.ending is None and leader.num_generated == 0

    def enter(self, sequence: Sequence) -> None:
        """Give `sequence`, whose table is empty, what is known of its tokens."""
        if not self._is_on:
            return
        found = self.found(sequence)
        if sequence.num_reused is None:
            sequence.num_reused = found * self._page_size
            self.tokens_asked += len(sequence.tokens)
            self.tokens_found += sequence.num_reused
        if found:
            sequence.used_keys = sequence.keys[:found]
            sequence.adopted = sequence.table.adopt(self.cache.acquire(sequence.used_keys))
            sequence.num_computed = found * self._page_size

    def may_publish(self, sequence: Sequence) -> bool:
        """Whether others can read what `sequence` has read: nothing of it was evicted."""
        return self._is_on and not sequence.is_compressed

    def publish(self, sequence: Sequence) -> None:
        """Let others find the full columns of `sequence` that end a block, unless something of it was evicted.

        Where another has read the same text at the same time, it ends with the columns before.
        """
        if not self.may_publish(sequence):
            return
        full = sequence.num_computed // self._page_size // self._step * self._step
        if full <= len(sequence.used_keys):
            return
        self._extend_keys(sequence, sequence.num_computed)
        for column in range(len(sequence.used_keys), full):
            if column % self._step == 0:
                self.cache.drop_rest(sequence.keys[column : column + self._step])
            if not self.cache.publish(sequence.keys[column], sequence.table.column(column)):
                break
            sequence.used_keys.append(sequence.keys[column])

    def release(self, sequence: Sequence) -> None:
        """`sequence` uses no columns any more; the table still holds its pages."""
        self.cache.release(sequence.used_keys)
        sequence.used_keys = []

    def shared(self, sequence: Sequence) -> int:
        """Columns of running `sequence` that other sequences use; the first of its table."""
        return self.cache.num_shared(sequence.used_keys)

    def forget(self, sequence: Sequence, beyond: int = 0) -> None:
        """As `release`, but for its first `beyond` columns; what nobody else uses is nobody's but the table's then."""
        self.cache.forget(sequence.used_keys[beyond:])
        sequence.used_keys = sequence.used_keys[:beyond]

    def _extend_keys(self, sequence: Sequence, count: int) -> None:
        if len(sequence.keys) < count // self._page_size:
            extend_keys(sequence.keys, sequence.tokens[:count], self._page_size, sequence.request.cache_salt or "")


def take_adopted(sequence: Sequence, update: TableUpdate) -> tuple[TableUpdate, int]:
    """`update` behind the pages that `sequence` entered with, of which the runner has not heard; and their rows."""
    adopted, sequence.adopted = sequence.adopted, None
    if adopted is None:
        return update, 0
    rows = int(np.max(adopted.columns)) + 1
    return adopted.then(update), rows * sequence.table.page_size
