"""Which pages are free and who holds the others: integers only, vectorised, so that thousands a step cost nothing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

PageIds = npt.NDArray[np.int32]


class OutOfPages(Exception):
    """More pages were asked for than are free. Nothing was allocated."""


class PageAllocator:
    """Owns the free list and the reference count of every page of one pool.

    Page 0 is never handed out: padded table entries point to it, so a stray read hits rows that nobody owns.
    Only the scheduler calls it. Allocation order is last freed, first reused, which keeps the working set small.
    `track_freed`: remember which pages fell free, for `take_freed`.
    """

    def __init__(self, num_pages: int, *, track_freed: bool = False) -> None:
        if num_pages < 2:
            raise ValueError(f"a pool needs at least 2 pages, got {num_pages}")
        self.num_pages = num_pages
        self._stack: PageIds = np.arange(num_pages - 1, 0, -1, dtype=np.int32)
        self._num_free = num_pages - 1
        self._references: npt.NDArray[np.int32] = np.zeros(num_pages, dtype=np.int32)
        self._track_freed = track_freed
        self._freed: list[PageIds] = []

    @property
    def num_usable(self) -> int:
        """Pages that sequences can hold altogether."""
        return self.num_pages - 1

    @property
    def num_free(self) -> int:
        """Pages that can be allocated now."""
        return self._num_free

    def allocate(self, count: int) -> PageIds:
        """Take `count` pages, each with one reference. Raises OutOfPages, then nothing has changed."""
        if count > self._num_free:
            raise OutOfPages(f"{count} pages wanted, {self._num_free} free")
        start = self._num_free - count
        pages = self._stack[start : self._num_free][::-1].copy()
        self._num_free = start
        self._references[pages] = 1
        return pages

    def share(self, pages: PageIds) -> None:
        """Add one reference to each of `pages`, all of them held already. No page may appear twice."""
        assert (self._references[pages] > 0).all(), "a free page cannot be shared"
        self._references[pages] += 1

    def release(self, pages: PageIds) -> PageIds:
        """Drop one reference from each of `pages` (no page twice); returns those that fell free."""
        references = self._references
        references[pages] -= 1
        assert (references[pages] >= 0).all(), "a page was released more often than it was taken"
        freed: PageIds = pages[references[pages] == 0]
        self._stack[self._num_free : self._num_free + freed.size] = freed
        self._num_free += freed.size
        if self._track_freed:
            self._freed.append(freed)
        return freed

    def references(self, pages: PageIds) -> npt.NDArray[np.int32]:
        """How many hold each of `pages`."""
        return self._references[pages]

    def take_freed(self) -> PageIds:
        """Pages that fell free since the last call, if they are tracked; they may have been taken again."""
        freed, self._freed = np.concatenate([np.zeros(0, dtype=np.int32), *self._freed]), []
        return freed

    def check_integrity(self, held: Iterable[PageIds]) -> None:
        """Assert that free + referenced = total, no page is free twice, and counts equal the holders in `held`."""
        free = self._stack[: self._num_free]
        assert np.unique(free).size == free.size, "a page is free twice"
        assert 0 not in free, "the padding page is in the free list"
        counts = np.zeros(self.num_pages, dtype=np.int32)
        for pages in held:
            np.add.at(counts, pages, 1)
        assert np.array_equal(counts, self._references), "reference counts differ from what tables hold"
        assert (counts[free] == 0).all(), "a table holds a free page"
        assert free.size + np.count_nonzero(counts) == self.num_usable, "pages were lost"
