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

    def then(self, later: TableUpdate) -> TableUpdate:
        """This update and `later` in one."""
        parts = zip((self.lanes, self.columns, self.pages), (later.lanes, later.columns, later.pages), strict=True)
        return TableUpdate(*(np.concatenate(both) for both in parts))

    @staticmethod
    def of_lanes(counts: Counts, first: Counts, pages: PageIds) -> TableUpdate:
        """`pages` in turn: `counts[l]` of them become the entries of lane l from column `first[l]` on."""
        lanes = np.repeat(np.arange(counts.size, dtype=np.int32), counts)
        before = np.repeat(np.cumsum(counts) - counts, counts)
        columns = (np.arange(lanes.size) - before + first[lanes]).astype(np.int32)
        return TableUpdate(lanes, columns, pages[: lanes.size])

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
        update = TableUpdate.of_lanes(missing, self.num_pages, pages)
        self._enter(update, self.kept + np.int32(new_rows))
        return update

    def adopt(self, pages: PageIds) -> TableUpdate:
        """Begin with `pages` [lanes, columns] full of rows; their references become this table's."""
        assert self.total_rows == 0, "only an empty table can adopt pages"
        columns = np.full(self.num_lanes, pages.shape[1], dtype=np.int32)
        update = TableUpdate.of_lanes(columns, self.num_pages, pages.ravel())
        self._enter(update, columns * np.int32(self.page_size))
        return update

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

    def replace(self, kept: Counts, fresh: PageIds, allocator: PageAllocator) -> PageIds:
        """The rows kept were copied to `fresh` pages, lane after lane: take those needed in place of all others.

        Returns the pages that fell free, what is left of `fresh` among them.
        """
        needed = self._pages_for(kept)
        freed = [self.clear(allocator), allocator.release(fresh[needed.sum() :])]
        self._enter(TableUpdate.of_lanes(needed, self.num_pages, fresh), kept)
        return np.concatenate(freed)

    def clear(self, allocator: PageAllocator) -> PageIds:
        """Release everything; returns the pages that fell free."""
        return self.shrink(np.zeros_like(self.kept), allocator)

    def column(self, number: int) -> PageIds:
        """The pages of all lanes in column `number`, which all of them have; [lanes]."""
        return self._pages[:, number].copy()

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

    def _enter(self, update: TableUpdate, kept: Counts) -> None:
        num_pages = self._pages_for(kept)
        self._reserve(int(num_pages.max()))
        self._pages[update.lanes, update.columns] = update.pages
        self.num_pages[:] = num_pages
        self.kept[:] = kept
        self._room = self._least_room()

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
