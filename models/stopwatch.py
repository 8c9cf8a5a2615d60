"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Splits the time since it was made into named parts. One step's, used by its thread alone."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = clock()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """Count the time since the last lap as `part`'s."""
        now = self._clock()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now
