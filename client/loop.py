"""An event loop that knows when it last looked at its sockets."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.looked_at = perf_counter()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout)
        self.looked_at = perf_counter()
        return found


class StampingLoop(asyncio.SelectorEventLoop):
    """Tells how long ago it found something to read.

    Where a token of each of many streams comes in the same moment, all of them are there before the first is read: the
    time it takes to get round to the last one is the client's, not the server's.
    """

    def __init__(self) -> None:
        self._looking = _Selector()
        super().__init__(self._looking)

    def waited(self) -> float:
        """Seconds since the sockets were looked at whose data is being handed out."""
        return perf_counter() - self._looking.looked_at


def waited() -> float:
    """Seconds that the data which is being handed out has waited; 0 in a loop that does not know."""
    loop = asyncio.get_running_loop()
    return loop.waited() if isinstance(loop, StampingLoop) else 0.0


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, in such a loop."""
    with asyncio.Runner(loop_factory=StampingLoop) as runner:
        return runner.run(main)
