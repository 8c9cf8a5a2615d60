"""Connections to the server under test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import httpx

CONNECT_TIMEOUT_S = 30.0
KEEPALIVE_S = 4.0
"""Servers close idle connections from 5 s on; a request sent at that moment is lost, so the client goes first."""


class ConnectionPool:
    """Lends connections, the one used last first, and opens one more when all are lent.

    There are as many connections as requests in flight, never fewer, and each is an httpx client of its own: httpx's
    pool walks over all its connections for every request, which costs seconds from a hundred requests in flight on.
    Nothing is retried and nothing times out but the connection itself.
    """

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        # Answers must not be compressed: a compressor between server and client holds events back.
        self._headers = {"Accept-Encoding": "identity"} | dict(headers or {})
        self._tls = httpx.create_ssl_context()
        self._clients: list[httpx.AsyncClient] = []
        self._free: list[httpx.AsyncClient] = []

    @contextmanager
    def lend(self) -> Iterator[httpx.AsyncClient]:
        """A client with one connection, for one request."""
        client = self._free.pop() if self._free else self._open()
        try:
            yield client
        finally:
            self._free.append(client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            await client.aclose()

    def _open(self) -> httpx.AsyncClient:
        client = httpx.AsyncClient(
            headers=self._headers,
            verify=self._tls,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEEPALIVE_S),
        )
        self._clients.append(client)
        return client
