"""Sends a stream to a reader who may be slow, behind proxies that may lose patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Send

from server.settings import Pace

_COMMENT = b": keep-alive\n\n"


class PacedSender:
    """Sends the body of one response. One task watches it, so that an event costs nothing but its sending."""

    def __init__(self, send: Send, pace: Pace) -> None:
        self._send = send
        self._pace = pace
        self._is_quiet = True
        self._blocked_since: float | None = None
        self._has_stalled = False

    async def send_all(self, events: AsyncIterator[bytes]) -> None:
        """Send what comes. Raises ClientDisconnect if the reader stalls."""
        owner, clock = asyncio.current_task(), asyncio.get_running_loop().time
        assert owner is not None, "this runs in a task"
        watch = asyncio.create_task(self._watch(owner))
        try:
            async for data in events:
                if data:
                    self._is_quiet, self._blocked_since = False, clock()
                    await self._send_one(data)
                    self._blocked_since = None
        except asyncio.CancelledError:
            if not self._has_stalled:
                raise
            owner.uncancel()
            raise ClientDisconnect from None
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _watch(self, owner: asyncio.Task[Any]) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._is_quiet = True
            await asyncio.sleep(min(self._pace.keep_alive, self._pace.stall))
            if self._blocked_since is not None:
                if clock() - self._blocked_since > self._pace.stall:
                    self._has_stalled = True
                    owner.cancel()
                    return
            elif self._is_quiet:
                await self._send_one(_COMMENT)

    async def _send_one(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
