"""Whether the client itself keeps up."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

LAG_PERIOD_S = 0.02


@dataclass(slots=True)
class ClientWatch:
    """How late the event loop woke up, in seconds, and how much of one core this process used meanwhile."""

    lags: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0

    @property
    def cpu_share(self) -> float:
        """Of one core; near 1 the client cannot do more."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches for as long as the block runs. Garbage is left alone meanwhile: collecting it stops everything."""
        collects = gc.isenabled()
        gc.collect()
        gc.disable()
        cpu, wall = time.process_time(), time.perf_counter()
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            if collects:
                gc.enable()
            task.cancel()
            self.cpu_s += time.process_time() - cpu
            self.wall_s += time.perf_counter() - wall

    async def _watch(self) -> None:
        while True:
            due = time.perf_counter() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self.lags.append(max(0.0, time.perf_counter() - due))
