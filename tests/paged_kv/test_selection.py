"""Choosing the best of many, against the plain definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paged_kv.selection import highest, rows_that_fit

INF = float("inf")


def worths(data: st.DataObject, page_size: int) -> list[Tensor]:
    """Of some sequences, best and worst rows and lanes' ends drawn at random, with few distinct values between."""
    lanes = data.draw(st.integers(1, 4))
    sequences = []
    for _ in range(data.draw(st.integers(1, 3))):
        rows = data.draw(st.integers(1, 5 * page_size))
        values = st.sampled_from([-INF, -3.0, 0.0, 0.5, 1.0, 1e6, INF])
        sequences.append(
            torch.tensor([data.draw(st.lists(values, min_size=rows, max_size=rows)) for _ in range(lanes)])
        )
    return sequences


def pages_with_room(counts: list[list[int]], page_size: int) -> int:
    return sum(-(-(count + 1) // page_size) for lanes in counts for count in lanes)


def fitting_row_by_row(sequences: list[Tensor], page_size: int, max_pages: int) -> list[list[int]]:
    """Take away what is worth least, one worth after the other; then let lanes fill up all but the last row."""
    held = [[sum(worth > -INF for worth in lane) for lane in sequence.tolist()] for sequence in sequences]
    finite = sorted({worth for sequence in sequences for worth in sequence.flatten().tolist() if abs(worth) < INF})
    for worst in [-INF, *finite]:
        left = [[sum(worth > worst for worth in lane) for lane in sequence.tolist()] for sequence in sequences]
        if pages_with_room(left, page_size) <= max_pages:
            break
    return [
        [min(rows, -(-(count + 1) // page_size) * page_size - 1) for count, rows in zip(counts, lanes, strict=True)]
        for counts, lanes in zip(left, held, strict=True)
    ]


@given(data=st.data())
@settings(max_examples=200)
def test_as_many_as_fit_are_those_that_are_worth_most(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 2, 4]))
    sequences = worths(data, page_size)
    most = pages_with_room([[sequence.shape[1]] * sequence.shape[0] for sequence in sequences], page_size)
    max_pages = data.draw(st.integers(1, most))
    found = [left.tolist() for left in rows_that_fit(sequences, page_size, max_pages)]
    assert found == fitting_row_by_row(sequences, page_size, max_pages)


@given(data=st.data())
@settings(max_examples=100)
def test_the_highest_are_those_that_a_stable_sort_puts_first(data: st.DataObject) -> None:
    groups, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    values = st.sampled_from([-INF, -1.0, 0.0, 2.0, INF])
    rows = torch.tensor([data.draw(st.lists(values, min_size=size, max_size=size)) for _ in range(groups)])
    counts = torch.tensor([data.draw(st.integers(-1, size + 1)) for _ in range(groups)])
    order = rows.argsort(dim=1, descending=True, stable=True)
    expected = torch.zeros_like(rows, dtype=torch.bool)
    for group, count in enumerate(counts.clamp(min=0).tolist()):
        expected[group, order[group, :count]] = True
    assert torch.equal(highest(rows, counts), expected)


@pytest.mark.parametrize("page_size", [1, 4])
def test_what_must_stay_stays_even_where_it_does_not_fit(page_size: int) -> None:
    worth = torch.tensor([[INF] * 9 + [1.0] * 3])
    (left,) = rows_that_fit([worth], page_size, max_pages=1)
    assert left.tolist() == [9 if page_size == 1 else 11]
