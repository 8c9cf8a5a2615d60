"""What the server says of itself at `/metrics` while it is under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from client.connection import Clock, Disconnected
from client.pool import Address, CannotConnect, ConnectionPool

GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "rows_kept": "scissorserve:kv_rows_kept",
}
COUNTERS = {
    "pages_freed": "scissorserve:kv_pages_freed_total",
    "rows_evicted": "scissorserve:kv_rows_evicted_total",
    "preemptions": "vllm:num_preemptions_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "prefix_queries": "vllm:prefix_cache_queries_total",
}
_NAMES = GAUGES | COUNTERS
_STARTS = tuple(name.encode() for name in _NAMES.values())
TIMEOUT_S = 10.0


@dataclass(slots=True)
class Series:
    """Times in seconds since the run began, and values; those of a counter count from the beginning of the run."""

    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Page:
    """The body of one answer; a `Receiver`."""

    status: int = 0
    data: bytes = b""

    def sent(self, _at: float) -> None:
        pass

    def head(self, status: int, _headers: dict[str, str]) -> None:
        self.status = status

    def body(self, _at: float, data: bytes) -> None:
        self.data += data


class Scraper:
    """Asks one server for its metrics every `period_s`; 0: never. Pages are only read when the run is over."""

    def __init__(self, pool: ConnectionPool, url: str, period_s: float) -> None:
        self._pool = pool
        self._address = Address.of(url)
        self._wanted = period_s > 0
        self._period_s = period_s
        self._turns: list[list[tuple[float, bytes]]] = []

    @asynccontextmanager
    async def scraping(self, clock: Clock) -> AsyncIterator[None]:
        """One turn: asks at its beginning, while it lasts, and at its end, unless the server has no such page."""
        self._turns.append([])
        if self._wanted:
            await self._ask(clock)
        task = asyncio.create_task(self._keep_asking(clock))
        try:
            yield
        finally:
            task.cancel()
            if self._wanted:
                await self._ask(clock)

    def series(self) -> Mapping[str, Series]:
        """What was asked for so far, by the keys of GAUGES and COUNTERS; what the server does not tell is not there.

        What a counter rose between two turns belongs to somebody else, and is left out.
        """
        found: dict[str, Series] = {}
        for turn in self._turns:
            ends = {key: series.values[-1] for key, series in found.items()}
            firsts = _read(turn[0][1]) if turn else {}
            for at, page in turn:
                for key, value in _read(page).items():
                    shift = ends.get(key, 0.0) - firsts.get(key, value) if key in COUNTERS else 0.0
                    series = found.setdefault(key, Series())
                    series.times.append(at)
                    series.values.append(value + shift)
        return found

    async def _keep_asking(self, clock: Clock) -> None:
        while self._wanted:
            await asyncio.sleep(self._period_s)
            await self._ask(clock)

    async def _ask(self, clock: Clock) -> None:
        page, at = _Page(), clock()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._pool.request("GET", self._address, {}, b"", page, clock)
        except (CannotConnect, Disconnected, TimeoutError):
            return  # a server that is busy or gone for a moment; the next time it may answer
        if page.status == 200:
            self._turns[-1].append((at, _relevant(page.data)))
        else:
            self._wanted = page.status >= 500


def _relevant(page: bytes) -> bytes:
    """The lines that will be read; a page has hundreds of others."""
    return b"".join(line for line in page.splitlines(keepends=True) if line.startswith(_STARTS))


def _read(page: bytes) -> dict[str, float]:
    """Values by key; those of several engines are added."""
    values: dict[str, float] = {}
    keys = {name: key for key, name in _NAMES.items()}
    for family in text_string_to_metric_families(page.decode("utf-8", errors="replace")):
        for sample in family.samples:
            if key := keys.get(sample.name):
                values[key] = values.get(key, 0.0) + sample.value
    return values
