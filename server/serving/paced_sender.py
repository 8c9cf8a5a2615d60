"""Sends a stream to a reader who may be slow, behind proxies that may lose patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.types import Send

from server.settings import Pace

_COMMENT = b": keep-alive\n\n"


class PacedSender:
    """Sends the body of one response. What is sent goes out at once or waits for the reader, never in between."""

    def __init__(self, send: Send, pace: Pace) -> None:
        self._send = send
        self._pace = pace
        self._lock = asyncio.Lock()
        self._is_quiet = True

    async def send_all(self, events: AsyncIterator[bytes]) -> None:
        """Send what comes. Raises ClientDisconnect if the reader stalls."""
        beat = asyncio.create_task(self._beat())
        try:
            async for data in events:
                if data:
                    self._is_quiet = False
                    await self._send_one(data)
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            self._is_quiet = True
            await asyncio.sleep(self._pace.keep_alive)
            if self._is_quiet:
                with suppress(ClientDisconnect):  # the next event tells
                    await self._send_one(_COMMENT)

    async def _send_one(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._pace.stall), self._lock:
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise ClientDisconnect from None
