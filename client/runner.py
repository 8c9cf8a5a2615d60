"""Runs a load: decides when each request goes out, and collects the records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from client.connection import Clock
from client.record import RequestRecord
from client.request import Call
from client.watch import ClientWatch

Send = Callable[[Call, float | None, Clock], Awaitable[RequestRecord]]
"""Sends one call that was due at the given time, or is when it is sent, and never raises."""


def clock_from(begin: float) -> Clock:
    """A clock in seconds that shows `begin` now."""
    started = time.perf_counter() - begin
    return lambda: time.perf_counter() - started


@dataclass(slots=True)
class Outcome:
    """What a load left behind; it may be run in several parts, one after the other on the same clock.

    `records` are in the order they finished. `interrupted`: the run was cancelled, so requests in flight and later
    ones have no record. `unsent` sessions were due, or not even that, when the time limit came.
    """

    records: list[RequestRecord] = field(default_factory=list)
    duration: float = 0.0
    unsent: int = 0
    interrupted: bool = False
    client: ClientWatch = field(default_factory=ClientWatch)


@dataclass(frozen=True, slots=True)
class Limits:
    """At most `concurrency` sessions at a time, and none that begins after `seconds`; None: no limit."""

    concurrency: int | None = None
    seconds: float | None = None


async def run_load(
    calls: Sequence[Call],
    send: Send,
    outcome: Outcome,
    *,
    due_times: Sequence[float] | None,
    limits: Limits,
    on_done: Callable[[RequestRecord], None],
) -> None:
    """Sends every call once, and what follows from its answer, and adds to `outcome`.

    With `due_times` (open loop), in seconds from now, a call is due at its time, however late the server is, and
    waiting for a place counts as latency. Without (closed loop) it is due when it is sent, once a place is
    free. A run that is cancelled ends well; `outcome` then says so.
    """
    begin = outcome.duration
    plan = [None] * len(calls) if due_times is None else [begin + due for due in due_times]
    places = asyncio.Semaphore(limits.concurrency or max(1, len(calls)))
    with outcome.client.watching():
        clock = clock_from(begin)
        end = None if limits.seconds is None else begin + limits.seconds
        load = _Load(send, on_done, clock, end, places, outcome)
        try:
            async with asyncio.TaskGroup() as group:
                for call, due in zip(calls, plan, strict=True):
                    group.create_task(load.play(call, due))
        except asyncio.CancelledError:
            outcome.interrupted = True
            if task := asyncio.current_task():
                task.uncancel()
    outcome.duration = clock()


@dataclass(frozen=True, slots=True)
class _Load:
    send: Send
    on_done: Callable[[RequestRecord], None]
    clock: Clock
    end: float | None
    places: asyncio.Semaphore
    outcome: Outcome

    async def play(self, first: Call, due: float | None) -> None:
        """One session: its first call when it is due and there is a place, each other one after the answer."""
        if due is not None:
            await self._wait_until(due)
        async with self.places:
            if self._over():
                self.outcome.unsent += 1
                return
            call: Call | None = first
            while call is not None and not self._over():
                record = await self.send(call, due, self.clock)
                self.outcome.records.append(record)
                self.on_done(record)
                if record.failure or call.then is None:
                    return
                call = call.then(record.text)
                due = record.finished + call.pause
                await self._wait_until(due)

    async def _wait_until(self, due: float) -> None:
        """Until `due`, but not beyond the end of the run."""
        until = due if self.end is None else min(due, self.end)
        await asyncio.sleep(max(0.0, until - self.clock()))

    def _over(self) -> bool:
        return self.end is not None and self.clock() >= self.end
