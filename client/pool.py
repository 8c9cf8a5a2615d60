"""Connections to the servers under test."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx

from client.backlog import Backlog
from client.connection import Clock, Connection, Receiver

CONNECT_TIMEOUT_S = 30.0
KEEPALIVE_S = 4.0
"""Servers close idle connections from 5 s on; a request sent at that moment is lost, so the client goes first."""


class CannotConnect(Exception):
    """Nobody took the connection. The message says why."""


Origin = tuple[bool, str, int]
"""Whether TLS is spoken, host, port: connections to one origin are alike."""


@dataclass(frozen=True, slots=True)
class Address:
    """A URL taken apart once, so that it need not be for every request."""

    origin: Origin
    authority: str
    path: str

    @classmethod
    def of(cls, url: str) -> Address:
        """Takes apart an http or https URL. Raises httpx.InvalidURL."""
        parsed = httpx.URL(url)
        tls = parsed.scheme == "https"
        origin = (tls, parsed.host, parsed.port or (443 if tls else 80))
        return cls(origin, parsed.netloc.decode("ascii"), parsed.raw_path.decode("ascii"))


class ConnectionPool:
    """Lends connections, the one used last first, and opens one more when all are lent.

    There are as many connections as requests in flight, never fewer. Nothing is retried, and nothing times out but the
    connection itself. `headers` go with every request. With `cold`, no connection carries more than one; `insecure`
    takes any certificate.
    """

    def __init__(self, headers: Mapping[str, str] | None = None, *, cold: bool = False, insecure: bool = False) -> None:
        # Answers must not be compressed: a compressor between server and client holds events back.
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "scissorserve-bench"} | dict(headers or {})
        self._cold = cold
        self._insecure = insecure
        self._backlog = Backlog()
        self._tls: ssl.SSLContext | None = None
        self._open: set[Connection] = set()
        self._free: dict[Origin, list[tuple[float, Connection]]] = {}

    async def warm(self, address: Address, count: int) -> None:
        """Opens connections until `count` are free, so that the first requests need not wait for theirs.

        Those that cannot be opened are left to the requests, which say why.
        """
        usable = [self._take_free(address.origin) for _ in range(0 if self._cold else count)]
        missing = [self._connect(address.origin) for one in usable if one is None]
        opened = await asyncio.gather(*missing, return_exceptions=True)
        for connection in (*usable, *opened):
            if isinstance(connection, Connection):
                self._give_back(address.origin, connection)

    async def request(
        self, method: str, address: Address, headers: Mapping[str, str], body: bytes, receiver: Receiver, clock: Clock
    ) -> None:
        """One exchange on a connection of its own. Raises CannotConnect, Disconnected, or what `receiver` raises."""
        fields = {"Host": address.authority} | self._headers | dict(headers)
        async with self._lend(address.origin, receiver, clock) as connection:
            await connection.exchange(method, address.path, fields.items(), body, receiver, clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._open:
            connection.abort()
        await asyncio.sleep(0)  # the turn in which transports close

    @asynccontextmanager
    async def _lend(self, origin: Origin, receiver: Receiver, clock: Clock) -> AsyncIterator[Connection]:
        connection = self._take_free(origin)
        if connection is None:
            receiver.sent(clock())
            connection = await self._connect(origin)
        try:
            yield connection
        finally:
            self._give_back(origin, connection)

    def _give_back(self, origin: Origin, connection: Connection) -> None:
        if connection.reusable and not self._cold:
            self._free.setdefault(origin, []).append((time.monotonic(), connection))
        else:
            self._discard(connection)

    def _take_free(self, origin: Origin) -> Connection | None:
        free = self._free.get(origin, [])
        while free:
            since, connection = free.pop()
            if connection.reusable and time.monotonic() - since < KEEPALIVE_S:
                return connection
            self._discard(connection)
        return None

    def _discard(self, connection: Connection) -> None:
        connection.abort()
        self._open.discard(connection)

    async def _connect(self, origin: Origin) -> Connection:
        tls, host, port = origin
        if tls and self._tls is None:
            self._tls = httpx.create_ssl_context(verify=not self._insecure)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._backlog), host, port, ssl=self._tls if tls else None
                )
        except TimeoutError as error:
            raise CannotConnect(f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise CannotConnect(os.strerror(error.errno) if error.errno else str(error)) from error
        self._open.add(connection)
        return connection
