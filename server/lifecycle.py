"""The server's way from its start to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from server.ports import Engine

logger = logging.getLogger(__name__)


class Lifecycle:
    """Knows whether the server takes requests. Shared by health checks and whoever hears the signals.

    `warm_up`: run behind the start; gives None, or what it failed of. Until it is over the server lives, but is not
    ready. Every method is called on the event loop.
    """

    def __init__(self, engine: Engine, warm_up: Callable[[], Awaitable[str | None]] | None = None) -> None:
        self._engine = engine
        self._warm_up = warm_up
        self._warming: asyncio.Task[None] | None = None
        self._cold_reason = None if warm_up is None else "the server is warming up"
        self._is_draining = False
        self.is_stuck = False

    async def start(self) -> None:
        """Start the engine, and begin to warm it up."""
        await self._engine.start()
        if self._warm_up is not None:
            self._warming = asyncio.create_task(self._warm(self._warm_up), name="warm-up")

    async def stop(self) -> None:
        """Stop the engine. `is_stuck` tells afterwards whether it left a step behind that does not end."""
        if self._warming is not None:
            self._warming.cancel()
        self.is_stuck = not await self._engine.stop()

    def begin_drain(self) -> None:
        """Send newcomers away from now on; what runs goes on."""
        self._is_draining = True
        self._engine.begin_drain()

    async def drained(self, seconds: float) -> bool:
        """Wait until nothing runs, at most `seconds`; then end the rest with error events and return False."""
        return await self._engine.drained(seconds)

    async def death(self) -> str:
        """Wait until the engine has ended, for good; returns why."""
        return await self._engine.death()

    def unhealthy_reason(self) -> str | None:
        """Why no request would make progress now; None if all is well."""
        return "the server is shutting down" if self._is_draining else self._engine.unhealthy_reason()

    def unready_reason(self) -> str | None:
        """Why a load balancer should send requests elsewhere; None if all is well."""
        return self.unhealthy_reason() or self._cold_reason

    async def _warm(self, warm_up: Callable[[], Awaitable[str | None]]) -> None:
        failure = await warm_up()
        self._cold_reason = None if failure is None else f"the first request, the server's own, failed: {failure}"
        if failure is not None:
            logger.error("not ready: %s", self._cold_reason)
