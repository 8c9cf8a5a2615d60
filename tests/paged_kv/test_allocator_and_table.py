"""The integer half of paged KV memory: nothing is lost, nothing is held twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paged_kv.allocator import OutOfPages, PageAllocator
from paged_kv.table import PageTable


def test_allocation_is_all_or_nothing() -> None:
    allocator = PageAllocator(5)
    held = allocator.allocate(3)
    with pytest.raises(OutOfPages, match="2 pages wanted, 1 free"):
        allocator.allocate(2)
    assert allocator.num_free == 1
    allocator.check_integrity([held])


def test_the_padding_page_is_never_handed_out() -> None:
    allocator = PageAllocator(9)
    assert sorted(allocator.allocate(8)) == list(range(1, 9))


def test_the_lowest_free_pages_come_first_and_in_order() -> None:
    """Also where they lie far apart."""
    allocator = PageAllocator(20_001)
    held = allocator.allocate(20_000)
    assert held.tolist() == list(range(1, 20_001))
    freed = np.array([17_000, 3, 4, 9_000, 12], dtype=np.int32)
    allocator.release(freed)
    assert allocator.allocate(4).tolist() == [3, 4, 12, 9_000]
    allocator.release(np.array([5], dtype=np.int32))
    assert allocator.allocate(2).tolist() == [5, 17_000]
    allocator.check_integrity([held])


def test_a_shared_page_falls_free_with_its_last_holder() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    allocator.share(pages)
    assert allocator.release(pages).size == 0
    allocator.check_integrity([pages])
    assert sorted(allocator.release(pages)) == sorted(pages)
    allocator.check_integrity([])


def test_releasing_or_sharing_a_free_page_is_caught() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(1)
    allocator.release(pages)
    with pytest.raises(AssertionError, match="more often"):
        allocator.release(pages)
    with pytest.raises(AssertionError, match="cannot be shared"):
        PageAllocator(4).share(pages)


def test_integrity_check_sees_lost_and_doubled_pages() -> None:
    allocator = PageAllocator(6)
    pages = allocator.allocate(3)
    with pytest.raises(AssertionError, match="reference counts"):
        allocator.check_integrity([pages[:2]])
    with pytest.raises(AssertionError, match="reference counts"):
        allocator.check_integrity([pages, pages[:1]])


def test_a_table_update_names_every_new_page_where_it_belongs() -> None:
    allocator = PageAllocator(40)
    table = PageTable(num_lanes=3, page_size=4)
    table.extend(5, allocator)
    table.shrink(np.array([5, 1, 4], dtype=np.int32), allocator)
    assert table.pages_missing(4) == 1 + 1 + 1
    update = table.extend(4, allocator)
    assert list(zip(update.lanes, update.columns, strict=True)) == [(0, 2), (1, 1), (2, 1)]
    assert list(table.kept) == [9, 5, 8]
    table.check_integrity()


def test_failed_extension_changes_nothing() -> None:
    allocator = PageAllocator(4)
    table = PageTable(num_lanes=2, page_size=2)
    table.extend(1, allocator)
    with pytest.raises(OutOfPages):
        table.extend(2, allocator)
    assert list(table.kept) == [1, 1]
    table.check_integrity()
    allocator.check_integrity([table.held()])


@given(rows=st.lists(st.integers(0, 50), min_size=1, max_size=8), new=st.integers(0, 50), size=st.integers(1, 20))
@settings(max_examples=50)
def test_missing_pages_match_what_extending_takes(rows: list[int], new: int, size: int) -> None:
    allocator = PageAllocator(2000)
    table = PageTable(len(rows), size)
    table.extend(50, allocator)
    table.shrink(np.array(rows, dtype=np.int32), allocator)
    before, missing = allocator.num_free, table.pages_missing(new)
    table.extend(new, allocator)
    assert before - allocator.num_free == missing


class TablesMachine(RuleBasedStateMachine):
    """Several tables over one small pool: extend, compress, clear in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(60)
        self.tables = [PageTable(num_lanes=3, page_size=4) for _ in range(3)]

    @rule(which=st.integers(0, 2), rows=st.integers(0, 20))
    def extend(self, which: int, rows: int) -> None:
        table = self.tables[which]
        fits = table.pages_missing(rows) <= self.allocator.num_free
        try:
            table.extend(rows, self.allocator)
        except OutOfPages:
            assert not fits
        else:
            assert fits

    @precondition(lambda self: any(table.total_rows for table in self.tables))
    @rule(which=st.integers(0, 2), data=st.data())
    def shrink(self, which: int, data: st.DataObject) -> None:
        table = self.tables[which]
        kept = [data.draw(st.integers(0, int(rows))) for rows in table.kept]
        freed = table.shrink(np.array(kept, dtype=np.int32), self.allocator)
        assert list(table.kept) == kept
        assert np.unique(freed).size == freed.size

    @rule(which=st.integers(0, 2))
    def clear(self, which: int) -> None:
        self.tables[which].clear(self.allocator)
        assert self.tables[which].total_pages == 0

    @invariant()
    def nothing_is_lost(self) -> None:
        for table in self.tables:
            table.check_integrity()
        self.allocator.check_integrity(table.held() for table in self.tables)

    def teardown(self) -> None:
        for table in self.tables:
            table.clear(self.allocator)
        assert self.allocator.num_free == self.allocator.num_usable


TestTables = TablesMachine.TestCase
TestTables.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
