"""Which pages are free and who holds the others: integers only, vectorised, so that thousands a step cost nothing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

PageIds = npt.NDArray[np.int32]


_WINDOW = 4096  # pages looked at in one go


class OutOfPages(Exception):
    """More pages were asked for than are free. Nothing was allocated."""


class PageAllocator:
    """Owns the reference count of every page of one pool; a page without references is free.

    Page 0 is never handed out: padded table entries point to it, so a stray read hits rows that nobody owns.
    Only the scheduler calls it. The lowest free pages are taken first, in order: those of a lane lie side by side as
    far as can be, which is read faster than pages here and there, and the working set stays small.
    `track_freed`: remember which pages fell free, for `take_freed`.
    """

    def __init__(self, num_pages: int, *, track_freed: bool = False) -> None:
        if num_pages < 2:
            raise ValueError(f"a pool needs at least 2 pages, got {num_pages}")
        self.num_pages = num_pages
        self._num_free = num_pages - 1
        self._lowest = 1  # no page below is free
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
        pages = self._lowest_free(count)
        self._num_free -= count
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
        self._num_free += freed.size
        self._lowest = min(self._lowest, int(freed.min(initial=self._lowest)))
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
        """Assert that counts equal the holders in `held`, and that nothing free was forgotten."""
        counts = np.zeros(self.num_pages, dtype=np.int32)
        for pages in held:
            np.add.at(counts, pages, 1)
        assert np.array_equal(counts, self._references), "reference counts differ from what tables hold"
        assert counts[0] == 0, "the padding page is held"
        assert self._num_free == self.num_usable - np.count_nonzero(counts), "pages were lost"
        assert counts[1 : self._lowest].all(), "free pages would never be found"

    def _lowest_free(self, count: int) -> PageIds:
        """The `count` lowest free pages, of which there are enough; looks at no more pages than it must, by windows."""
        found, missing = [np.zeros(0, dtype=np.int32)], count
        while missing > 0:
            stop = self._lowest + max(_WINDOW, 2 * missing)
            free = np.flatnonzero(self._references[self._lowest : stop] == 0)[:missing] + self._lowest
            found.append(free.astype(np.int32))
            missing -= free.size
            self._lowest = stop if missing else int(free[-1]) + 1
        return np.concatenate(found)
