"""Notices an engine that stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Progress:
    """Knows when work last moved. The event loop's thread calls it, save for `computing`, which the step's own calls.

    `stall_seconds`: standing still for longer counts as stuck. `clock`: seconds, such as `time.monotonic`.
    """

    def __init__(self, stall_seconds: float, clock: Callable[[], float]) -> None:
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._moved = clock()
        self._in_step = False
        self._thread: threading.Thread | None = None

    def work_came(self) -> None:
        """There was nothing to do, and now there is."""
        self._moved = self._clock()

    def step_began(self) -> None:
        """A step was handed to the thread that computes."""
        self._moved = self._clock()
        self._in_step = True
        self._thread = None

    def computing(self) -> None:
        """The step has reached the thread that computes, which makes this call."""
        self._thread = threading.current_thread()

    def step_ended(self) -> None:
        """The step gave a result, or failed."""
        self._moved = self._clock()
        self._in_step = False

    def obstacle(self, *, has_work: bool) -> str | None:
        """What keeps work from moving; None if all is well."""
        thread = self._thread
        if self._in_step and thread is not None and not thread.is_alive():
            return "the thread that computes has died"
        if self._clock() - self._moved <= self._stall_seconds:
            return None
        if self._in_step:
            return f"a step has been running for more than {self._stall_seconds:.0f} s"
        if has_work:
            return f"requests wait, but no step has begun for more than {self._stall_seconds:.0f} s"
        return None
