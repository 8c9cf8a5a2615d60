"""Runs a load: decides when each request goes out, collects the records, watches itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from client.record import RequestRecord
from client.request import Call, Clock

LAG_PERIOD_S = 0.02

Send = Callable[[Call, float, Clock], Awaitable[RequestRecord]]
"""Sends one call that was due at the given time, and never raises."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`records` in the order they finished; `loop_lags` is how late the client's own event loop woke up, in seconds.

    `interrupted`: the run was cancelled, so requests in flight and later ones have no record.
    """

    records: tuple[RequestRecord, ...]
    duration: float
    loop_lags: tuple[float, ...]
    interrupted: bool


async def run_load(
    calls: Sequence[Call],
    send: Send,
    *,
    due_times: Sequence[float] | None,
    max_concurrency: int | None,
    on_done: Callable[[RequestRecord], None],
) -> Outcome:
    """Sends every call once, at most `max_concurrency` at a time.

    With `due_times` (open loop) a call is due at its time, however late the server is, and waiting for a place counts
    as latency. Without (closed loop) it is due the moment a place is free. A cancelled run returns what it has.
    """
    started = time.perf_counter()
    records: list[RequestRecord] = []
    lags: list[float] = []
    places = asyncio.Semaphore(max_concurrency or len(calls))

    def clock() -> float:
        return time.perf_counter() - started

    async def go(call: Call, due: float | None) -> None:
        if due is not None:
            await asyncio.sleep(max(0.0, due - clock()))
        async with places:
            record = await send(call, clock() if due is None else due, clock)
        records.append(record)
        on_done(record)

    plan: Sequence[float | None] = due_times if due_times is not None else [None] * len(calls)
    watch = asyncio.create_task(_watch_loop(lags))
    interrupted = False
    try:
        async with asyncio.TaskGroup() as group:
            for call, due in zip(calls, plan, strict=True):
                group.create_task(go(call, due))
    except asyncio.CancelledError:
        interrupted = True
        if task := asyncio.current_task():
            task.uncancel()
    finally:
        watch.cancel()
    return Outcome(tuple(records), clock(), tuple(lags), interrupted)


async def _watch_loop(lags: list[float]) -> None:
    while True:
        due = time.perf_counter() + LAG_PERIOD_S
        await asyncio.sleep(LAG_PERIOD_S)
        lags.append(max(0.0, time.perf_counter() - due))
