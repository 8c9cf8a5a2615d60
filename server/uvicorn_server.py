"""Uvicorn, with a graceful end: running requests finish, newcomers are sent away, idle connections are cut."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from pydantic_core import to_json
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import HANDLED_SIGNALS

from server.errors import ApiError
from server.lifecycle import Lifecycle
from server.services import Services
from server.watchdog import LoopWatchdog

logger = logging.getLogger(__name__)

_FLUSH_SECONDS = 1  # for answers that are complete but not read yet


class GracefulServer(uvicorn.Server):
    """Ends on SIGTERM or SIGINT once what runs is done, at the latest after `shutdown_timeout`; on a second one, now.

    Until then it listens on, so that health checks and newcomers hear 503 instead of nothing. If the engine dies it
    ends, too: `exit_status` is then 1, so that whoever started it starts it again.
    """

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, shutdown_timeout: float) -> None:
        super().__init__(config)
        self.exit_status = 0
        self._watchdog = LoopWatchdog()
        self._obituary: asyncio.Task[None] | None = None
        self._lifecycle = lifecycle
        self._shutdown_timeout = shutdown_timeout
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Uvicorn's hook."""
        await super().startup(sockets)
        self._watchdog.start()
        self._obituary = asyncio.create_task(self._exit_when_dead(), name="obituary")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Uvicorn's hook."""
        if self._obituary is not None:
            self._obituary.cancel()
        await super().shutdown(sockets)
        self._watchdog.stop()
        if self._lifecycle.is_stuck:
            logger.critical("a step does not end; it is given up")
            self.exit_status = 1

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Uvicorn's hook. Unlike it, does not raise the signal again at the end: a graceful end is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in HANDLED_SIGNALS:
            loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in HANDLED_SIGNALS:
                loop.remove_signal_handler(number)

    def end(self) -> None:
        """Begin to end; when called again, end now. To be called on the event loop."""
        seconds = self._shutdown_timeout
        if self._drain is None:
            logger.info("shutting down: running requests have %.0f s to finish", seconds)
            self._lifecycle.begin_drain()
        else:
            logger.info("shutting down now")
            self._drain.cancel()
            seconds = 0
        self._drain = asyncio.create_task(self._exit_when_drained(seconds))

    async def _exit_when_drained(self, seconds: float) -> None:
        if not await self._lifecycle.drained(seconds):
            logger.warning("some requests were not complete and ended with an error")
        self.should_exit = True

    async def _exit_when_dead(self) -> None:
        reason = await self._lifecycle.death()
        logger.critical("ending with status 1, to be started anew: %s", reason)
        self.exit_status = 1
        self.should_exit = True


class HTTPProtocol(H11Protocol):
    """Closes connections whose client takes too long to send the head of a request. h11 itself limits its size."""

    head_seconds = 10.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._unwatch()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Uvicorn's hook for requests that are no HTTP: the answer has the shape of all others.

        A request may turn out to be none in its body, while it is answered or when it has been; it gets one answer.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # so that what else it says goes nowhere
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = to_json(ApiError(msg, code="invalid_http").body)
            length = ("content-length", str(len(body)))
            headers = [("content-type", "application/json"), length, ("connection", "close")]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self.transport.close)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def make_server(
    app: FastAPI, *, host: str, port: int, log_level: str = "info", log_config: dict[str, Any] | None = None
) -> GracefulServer:
    """A server for what `create_app` made. `log_config` None leaves logging as it is."""
    services: Services = app.state.services
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=HTTPProtocol,
        ws="none",
        log_level=log_level,
        log_config=log_config,
        timeout_keep_alive=services.settings.keep_alive,
        timeout_graceful_shutdown=_FLUSH_SECONDS,
        proxy_headers=False,
        server_header=False,
    )
    return GracefulServer(config, services.lifecycle, services.settings.shutdown_timeout)
