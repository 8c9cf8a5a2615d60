"""Work that can wait a little, so that arrivals are stamped when they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

SLICE_S = 0.0005
"""The longest that the event loop is kept from looking at its sockets."""

MAX_POSTPONED = 20
"""Looks in a row at sockets that had something, before the work is taken up all the same."""


class Backlog:
    """Jobs in the order they were added, done in slices when the sockets are quiet.

    With hundreds of streams, a token of each arrives at the same moment. Reading all of the first before stamping the
    second would add the client's own work to the latencies; so everything is stamped first, and read from here.
    """

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._seen = 0
        self._postponed = 0

    def add(self, job: Callable[[], None]) -> None:
        """Call from within a running event loop. `job` is short and does not raise."""
        self._jobs.append(job)
        if not self._scheduled:
            self._schedule()

    def _turn(self) -> None:
        more_came = len(self._jobs) > self._seen
        if more_came and self._postponed < MAX_POSTPONED:
            self._postponed += 1
        else:
            self._postponed = 0
            self._work_a_slice()
        self._seen = len(self._jobs)
        self._scheduled = False
        if self._jobs:
            self._schedule()

    def _work_a_slice(self) -> None:
        until = perf_counter() + SLICE_S
        while self._jobs and perf_counter() < until:
            self._jobs.popleft()()

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._turn)
