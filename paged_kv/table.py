"""One sequence's page table: which pages each lane holds, and how many rows of them are kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paged_kv.allocator import PageAllocator, PageIds

Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """Pages that entered a table: page `pages[i]` became entry `columns[i]` of lane `lanes[i]`; all int32 [count]."""

    lanes: Counts
    columns: Counts
    pages: PageIds

    @staticmethod
    def nothing() -> TableUpdate:
        """The update of a table whose pages had room."""
        empty = np.zeros(0, dtype=np.int32)
        return TableUpdate(empty, empty, empty)


class PageTable:
    """Owns the page references of one sequence; the scheduler alone calls it.

    Lane l holds `kept[l]` rows in its first `num_pages[l]` pages:

        pages[l]   | p0 | p1 | p2 | 0  | 0 ...          entries from num_pages[l] on are padding
        rows       |====|====|==..|                     kept[l] = 2 * page_size + 2
    """

    def __init__(self, num_lanes: int, page_size: int) -> None:
        self.page_size = page_size
        self.kept: Counts = np.zeros(num_lanes, dtype=np.int32)
        self.num_pages: Counts = np.zeros(num_lanes, dtype=np.int32)
        self._pages: PageIds = np.zeros((num_lanes, 4), dtype=np.int32)
        self._room = 0  # rows that every lane can still take in the pages it has

    @property
    def num_lanes(self) -> int:
        """Lanes of the sequence: layers times KV heads."""
        return self.kept.size

    @property
    def total_pages(self) -> int:
        """Pages held, over all lanes."""
        return int(self.num_pages.sum())

    @property
    def total_rows(self) -> int:
        """Rows held, over all lanes."""
        return int(self.kept.sum())

    def pages_missing(self, new_rows: int) -> int:
        """Pages that must be allocated before every lane can take `new_rows` more rows."""
        return 0 if new_rows <= self._room else int(self._missing(new_rows).sum())

    def extend(self, new_rows: int, allocator: PageAllocator) -> TableUpdate:
        """Make room for `new_rows` more rows in every lane and count them as kept. Raises OutOfPages, unchanged."""
        if new_rows <= self._room:
            self.kept += np.int32(new_rows)
            self._room -= new_rows
            return TableUpdate.nothing()
        missing = self._missing(new_rows)
        pages = allocator.allocate(int(missing.sum()))
        lanes = np.repeat(np.arange(self.num_lanes, dtype=np.int32), missing)
        first = np.repeat(np.cumsum(missing) - missing, missing)
        columns = (np.arange(pages.size) - first + self.num_pages[lanes]).astype(np.int32)
        self._reserve(int((self.num_pages + missing).max()))
        self._pages[lanes, columns] = pages
        self.num_pages += missing
        self.kept += np.int32(new_rows)
        self._room = self._least_room()
        return TableUpdate(lanes, columns, pages)

    def shrink(self, kept: Counts, allocator: PageAllocator) -> PageIds:
        """Keep the first `kept[l]` rows of each lane, release the pages beyond them; returns those that fell free."""
        assert (kept <= self.kept).all(), "shrinking cannot add rows"
        needed = self._pages_for(kept)
        columns = np.arange(self._pages.shape[1], dtype=np.int32)
        beyond = (columns >= needed[:, None]) & (columns < self.num_pages[:, None])
        freed = allocator.release(self._pages[beyond])
        self._pages[beyond] = 0
        self.num_pages[:] = needed
        self.kept[:] = kept
        self._room = self._least_room()
        return freed

    def clear(self, allocator: PageAllocator) -> PageIds:
        """Release everything; returns the pages that fell free."""
        return self.shrink(np.zeros_like(self.kept), allocator)

    def held(self) -> PageIds:
        """All page ids held, in no particular order."""
        columns = np.arange(self._pages.shape[1], dtype=np.int32)
        return self._pages[columns < self.num_pages[:, None]]

    def check_integrity(self) -> None:
        """Assert that every lane holds exactly the pages its rows need, all of them distinct and none the padding."""
        assert np.array_equal(self.num_pages, self._pages_for(self.kept)), "pages and rows disagree"
        assert self._room == self._least_room(), "the room that is left was miscounted"
        held = self.held()
        assert np.unique(held).size == held.size, "a page stands in the table twice"
        assert 0 not in held, "the padding page is in use"

    def _pages_for(self, rows: Counts) -> Counts:
        return -(-rows // np.int32(self.page_size))

    def _least_room(self) -> int:
        return int((self.num_pages * self.page_size - self.kept).min())

    def _missing(self, new_rows: int) -> Counts:
        return self._pages_for(self.kept + np.int32(new_rows)) - self.num_pages

    def _reserve(self, columns: int) -> None:
        capacity = self._pages.shape[1]
        if columns > capacity:
            grown = np.zeros((self.num_lanes, max(columns, 2 * capacity)), dtype=np.int32)
            grown[:, :capacity] = self._pages
            self._pages = grown
