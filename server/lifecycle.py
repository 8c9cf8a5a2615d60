"""The server's way from taking requests to its end."""

from __future__ import annotations

from server.ports import Engine


class Lifecycle:
    """Knows whether the server takes requests. Shared by the health check and whoever hears the signals."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_draining = False

    def begin_drain(self) -> None:
        """Send newcomers away from now on; what runs goes on."""
        self._is_draining = True
        self._engine.begin_drain()

    async def drained(self, seconds: float) -> bool:
        """Wait until nothing runs, at most `seconds`; then end the rest with error events and return False."""
        return await self._engine.drained(seconds)

    def unhealthy_reason(self) -> str | None:
        """Why a load balancer should send requests elsewhere; None if all is well."""
        return "the server is shutting down" if self._is_draining else self._engine.unhealthy_reason()
