"""How a request's events reach its reader, who may be slow, or gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

from scheduler.request import Finish, KVUsage, Timings, TokenEvent


class TokenStream:
    """Yields the events of one request until every choice has had its terminal one. The engine makes it.

    Events wait here at most one per choice: a reader that falls behind gets them merged, so memory is bounded by the
    tokens themselves. Leaving the `async with` block aborts whatever has not ended.
    """

    def __init__(self, request_id: str, num_choices: int, end: Callable[[int | None], None]) -> None:
        self.request_id = request_id
        self._open = set(range(num_choices))
        self._pending: dict[int, TokenEvent] = {}
        self._news = asyncio.Event()
        self._end = end

    @property
    def is_over(self) -> bool:
        """Whether every choice has ended, as the engine sees it."""
        return not self._open

    def push(self, event: TokenEvent) -> None:
        """Hand over `event`; for the engine. Events after a choice's terminal one are ignored."""
        if event.index not in self._open:
            return
        waiting = self._pending.get(event.index)
        self._pending[event.index] = event if waiting is None else _merged(waiting, event)
        if event.finish is not None:
            self._open.remove(event.index)
        self._news.set()

    def fail(self, error: str) -> None:
        """End every open choice with `error`; for an engine whose books can no longer say more."""
        now = time.monotonic()
        for index in sorted(self._open):
            finish = Finish("error", KVUsage(0.0, 0.0), Timings(now, None, None, now), error=error)
            self.push(TokenEvent(index, finish=finish))

    def stop(self, index: int) -> None:
        """End choice `index` with reason "stop": the reader found a stop string. Safe to repeat."""
        if index in self._open:
            self._end(index)

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        while self._pending or self._open:
            if self._pending:
                yield self._pending.pop(next(iter(self._pending)))
            else:
                self._news.clear()
                await self._news.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_over:
            self._end(None)


def _merged(earlier: TokenEvent, later: TokenEvent) -> TokenEvent:
    return replace(
        earlier,
        tokens=earlier.tokens + later.tokens,
        logprobs=earlier.logprobs + later.logprobs,
        finish=later.finish,
    )
