"""How late the event loop comes to what is due: what every stream and probe waits, whatever the engine does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

_INTERVAL = 0.02


class LoopLag:
    """A task that sleeps and tells `note` by how many seconds it woke too late. Start and stop it on the loop."""

    def __init__(self, note: Callable[[float], object], interval: float = _INTERVAL) -> None:
        self._note = note
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to measure the loop that runs here."""
        self._task = asyncio.create_task(self._measure(), name="loop lag")

    async def stop(self) -> None:
        """Measure no longer."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _measure(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + self._interval
            await asyncio.sleep(self._interval)
            self._note(max(0.0, clock() - due))
