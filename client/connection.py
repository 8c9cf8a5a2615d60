"""One HTTP/1.1 connection that stamps bytes the moment they come and reads them when there is time.

h11 knows the protocol, asyncio moves the bytes; what is ours is the order of the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import h11

from client.backlog import Backlog
from client.loop import waited

Clock = Callable[[], float]
Headers = Iterable[tuple[str, str]]

MAX_HEAD_BYTES = 64 * 1024


class Receiver(Protocol):
    """Takes an answer apart, piece by piece. What it raises ends the exchange and is raised by `exchange`."""

    def sent(self, at: float, /) -> None:
        """A connection is asked for, if there is none, and then the request is handed to it; the first time counts."""

    def head(self, status: int, headers: dict[str, str], /) -> None:
        """The status line and the headers; names in lower case."""

    def body(self, at: float, data: bytes, /) -> None:
        """Some of the body, and when it came by the clock of the exchange."""


class Disconnected(Exception):
    """The server broke the connection, or spoke no HTTP, before the answer was whole."""


@dataclass(slots=True)
class _Exchange:
    receiver: Receiver
    clock: Clock
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def end(self, error: Exception | None = None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class Connection(asyncio.Protocol):
    """Owned by the pool. Carries one exchange at a time; `reusable` says whether there may be another one."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._exchange: _Exchange | None = None

    @property
    def reusable(self) -> bool:
        """Whether the last exchange ended well and the server has not hung up since."""
        return self._transport is not None and self._exchange is None and self._http.our_state is h11.IDLE

    async def exchange(
        self, method: str, target: str, headers: Headers, body: bytes, receiver: Receiver, clock: Clock
    ) -> None:
        """Sends one request and feeds the whole answer to `receiver`. Raises Disconnected or what `receiver` raises."""
        exchange = self._exchange = _Exchange(receiver, clock)
        if self._transport is None:
            raise Disconnected("the server closed the connection")
        fields = [*headers, ("Content-Length", str(len(body)))]
        request = h11.Request(method=method, target=target, headers=fields)
        head = self._http.send(request) or b""
        message = head + (self._http.send(h11.Data(data=body)) or b"")
        receiver.sent(clock())
        self._transport.write(message)
        self._http.send(h11.EndOfMessage())
        await exchange.done
        self._exchange = None
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()

    def abort(self) -> None:
        """Drops the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Stamps with the time at which `data` was found; the reading is left to the backlog."""
        exchange = self._exchange
        if exchange is None:  # nothing was asked: a server that is leaving says so (408)
            self.abort()
        else:
            self._backlog.add(partial(self._read, exchange, exchange.clock() - waited(), data))

    def connection_lost(self, error: Exception | None) -> None:
        """Ends the exchange, after everything that came before has been read."""
        self._transport = None
        if exchange := self._exchange:
            self._backlog.add(partial(self._read_end, exchange, error))

    def _read_end(self, exchange: _Exchange, error: Exception | None) -> None:
        if error is None:
            self._read(exchange, exchange.clock(), b"")
        exchange.end(Disconnected(str(error or "") or "the server closed the connection in the middle of the answer"))

    def _read(self, exchange: _Exchange, at: float, data: bytes) -> None:
        if exchange.done.done():
            return
        try:
            self._http.receive_data(data)
            self._take_events(exchange, at)
        except h11.RemoteProtocolError as error:
            exchange.end(Disconnected(str(error)))
        except Exception as error:  # whatever the receiver raises belongs to whoever awaits the exchange
            exchange.end(error)

    def _take_events(self, exchange: _Exchange, at: float) -> None:
        while True:
            event = self._http.next_event()
            match event:
                case h11.Response():
                    headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
                    exchange.receiver.head(event.status_code, headers)
                case h11.Data():
                    exchange.receiver.body(at, bytes(event.data))
                case h11.EndOfMessage():
                    return exchange.end()
                case h11.ConnectionClosed() | h11.NEED_DATA | h11.PAUSED:
                    return None
