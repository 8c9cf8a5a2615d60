"""Sequences that wait for admission, in the order in which they should run."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice

from scheduler.sequence import Sequence


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


class WaitingQueue:
    """Keeps sequences sorted by `Sequence.order`; a preempted one returns to its old place. No two orders are equal."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Put `sequence` where its order says."""
        insort(self._sequences, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Take `sequence` out. Raises ValueError if it does not wait."""
        place = bisect_left(self._sequences, sequence.order, key=_order)
        if place == len(self._sequences) or self._sequences[place] is not sequence:
            raise ValueError("the sequence does not wait")
        del self._sequences[place]

    def first(self, count: int) -> list[Sequence]:
        """The `count` sequences that are next."""
        return list(islice(self._sequences, count))
