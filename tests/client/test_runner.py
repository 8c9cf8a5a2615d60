"""When requests go out, and what an interruption leaves. The server is a coroutine here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from client.record import Arrival, RequestRecord
from client.request import Call, Clock
from client.runner import Outcome, Send, run_load


@dataclass
class FakeServer:
    """Takes `seconds` for each request, and remembers who came and how many were there at once."""

    seconds: float = 0.0
    seen: list[str] = field(default_factory=list)
    in_flight: int = 0
    peak: int = 0

    async def send(self, call: Call, due: float, clock: Clock) -> RequestRecord:
        sent = clock()
        self.seen.append(call.request_id)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        await asyncio.sleep(self.seconds)
        self.in_flight -= 1
        return RequestRecord(call.request_id, 1, due, sent, clock(), (Arrival(clock(), "x"),))


def calls(count: int) -> list[Call]:
    return [Call(str(i), b"", 1) for i in range(count)]


def run(server: FakeServer, count: int, due_times: list[float] | None, max_concurrency: int | None) -> Outcome:
    async def go() -> Outcome:
        return await run_load(
            calls(count), server.send, due_times=due_times, max_concurrency=max_concurrency, on_done=lambda record: None
        )

    return asyncio.run(go())


@pytest.mark.parametrize("due_times", [None, [0.0] * 40])
def test_every_call_is_sent_once(due_times: list[float] | None) -> None:
    server = FakeServer()
    outcome = run(server, 40, due_times, max_concurrency=3)
    assert sorted(server.seen, key=int) == [str(i) for i in range(40)]
    assert len(outcome.records) == 40
    assert not outcome.interrupted


@pytest.mark.parametrize("limit", [1, 4, None])
def test_concurrency_is_reached_and_never_exceeded(limit: int | None) -> None:
    server = FakeServer(seconds=0.005)
    run(server, 12, [0.0] * 12, limit)
    assert server.peak == (limit or 12)


def test_in_a_closed_loop_requests_are_due_when_sent() -> None:
    outcome = run(FakeServer(seconds=0.01), 4, None, max_concurrency=1)
    assert all(later.due >= earlier.finished for earlier, later in pairwise(outcome.records))
    assert all(record.sent >= record.due for record in outcome.records)


def test_in_an_open_loop_a_slow_server_does_not_move_the_plan() -> None:
    plan = [0.0, 0.01, 0.02, 0.03]
    outcome = run(FakeServer(seconds=0.05), 4, plan, max_concurrency=1)
    records = sorted(outcome.records, key=lambda record: record.due)
    assert [record.due for record in records] == plan
    assert records[3].sent >= 3 * 0.049
    assert records[3].finished - records[3].due >= 4 * 0.049 - 0.03


def test_nothing_is_sent_before_it_is_due() -> None:
    outcome = run(FakeServer(), 3, [0.0, 0.03, 0.06], None)
    assert all(record.sent >= record.due - 0.002 for record in outcome.records)
    assert outcome.duration >= 0.058


def test_a_cancelled_run_returns_what_it_has() -> None:
    async def cancelled(send: Send) -> tuple[Outcome, int]:
        outcome = await run_load(calls(9), send, due_times=None, max_concurrency=1, on_done=lambda record: None)
        task = asyncio.current_task()
        assert task is not None
        return outcome, task.cancelling()

    async def go() -> tuple[Outcome, int]:
        reached = asyncio.Event()
        server = FakeServer()

        async def send(call: Call, due: float, clock: Clock) -> RequestRecord:
            if call.request_id == "2":
                reached.set()
                await asyncio.Event().wait()
            return await server.send(call, due, clock)

        task = asyncio.create_task(cancelled(send))
        await reached.wait()
        task.cancel()
        return await task

    outcome, still_cancelling = asyncio.run(go())
    assert [record.request_id for record in outcome.records] == ["0", "1"]
    assert outcome.interrupted
    assert still_cancelling == 0


def test_progress_is_reported_and_the_loop_watched() -> None:
    done: list[RequestRecord] = []

    async def go() -> Outcome:
        send = FakeServer(seconds=0.2).send
        return await run_load(calls(2), send, due_times=None, max_concurrency=2, on_done=done.append)

    outcome = asyncio.run(go())
    assert tuple(done) == outcome.records
    assert outcome.loop_lags
    assert all(lag >= 0 for lag in outcome.loop_lags)
