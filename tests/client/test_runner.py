"""When requests go out, and what an interruption leaves. The server is a coroutine here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import pytest

from client.connection import Clock
from client.record import Arrival, Failure, RequestRecord
from client.request import Call
from client.runner import Limits, Outcome, Send, run_load


@dataclass
class FakeServer:
    """Takes `seconds` for each request, and remembers who came and how many were there at once."""

    seconds: float = 0.0
    seen: list[str] = field(default_factory=list)
    in_flight: int = 0
    peak: int = 0

    async def send(self, call: Call, due: float | None, clock: Clock) -> RequestRecord:
        sent = clock()
        self.seen.append(call.request_id)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        await asyncio.sleep(self.seconds)
        self.in_flight -= 1
        return RequestRecord(call.request_id, 1, sent if due is None else due, sent, clock(), (Arrival(clock(), "x"),))


def calls(count: int) -> list[Call]:
    return [Call(str(i), b"", 1) for i in range(count)]


def run(server: FakeServer, count: int, due_times: list[float] | None, max_concurrency: int | None) -> Outcome:
    async def go() -> Outcome:
        outcome = Outcome()
        limits = Limits(max_concurrency)
        await run_load(
            calls(count), server.send, outcome, due_times=due_times, limits=limits, on_done=lambda record: None
        )
        return outcome

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
        outcome = Outcome()
        await run_load(calls(9), send, outcome, due_times=None, limits=Limits(1), on_done=lambda record: None)
        task = asyncio.current_task()
        assert task is not None
        return outcome, task.cancelling()

    async def go() -> tuple[Outcome, int]:
        reached = asyncio.Event()
        server = FakeServer()

        async def send(call: Call, due: float | None, clock: Clock) -> RequestRecord:
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


def test_progress_is_reported_and_the_client_watched() -> None:
    done: list[RequestRecord] = []

    async def go() -> Outcome:
        send, outcome = FakeServer(seconds=0.2).send, Outcome()
        await run_load(calls(2), send, outcome, due_times=None, limits=Limits(2), on_done=done.append)
        return outcome

    outcome = asyncio.run(go())
    assert done == outcome.records
    assert outcome.client.lags
    assert all(lag >= 0 for lag in outcome.client.lags)
    assert 0 < outcome.client.cpu_s <= outcome.client.wall_s


def test_parts_follow_each_other_on_one_clock() -> None:
    async def go() -> Outcome:
        send, outcome = FakeServer(seconds=0.02).send, Outcome()
        for _ in range(2):
            await run_load(calls(2), send, outcome, due_times=[0, 0.01], limits=Limits(), on_done=lambda record: None)
        return outcome

    outcome = asyncio.run(go())
    first, second = outcome.records[:2], outcome.records[2:]
    assert max(record.finished for record in first) <= min(record.due for record in second)
    assert outcome.duration >= outcome.records[-1].finished


def conversation(turns: int, pause: float = 0.0) -> Call:
    def follow(answer: str, turn: int) -> Call:
        later = partial(follow, turn=turn + 1) if turn + 1 < turns else None
        return Call(f"{turn} after {answer!r}", b"", 1, pause=pause, then=later)

    return follow("", 0)


def play(server: FakeServer, first: Call, seconds: float | None = None) -> Outcome:
    async def go() -> Outcome:
        outcome = Outcome()
        limits = Limits(1, seconds)
        await run_load([first], server.send, outcome, due_times=None, limits=limits, on_done=lambda record: None)
        return outcome

    return asyncio.run(go())


def test_a_conversation_goes_on_with_the_answer_after_a_pause() -> None:
    server = FakeServer(seconds=0.005)
    records = play(server, conversation(3, pause=0.02)).records
    assert server.seen == ["0 after ''", "1 after 'x'", "2 after 'x'"]
    assert all(later.due == earlier.finished + 0.02 for earlier, later in pairwise(records))
    assert all(record.sent >= record.due - 0.002 for record in records)


def test_a_conversation_ends_with_a_failure() -> None:
    class Failing(FakeServer):
        async def send(self, call: Call, due: float | None, clock: Clock) -> RequestRecord:
            return replace(await super().send(call, due, clock), failure=Failure("http_500", "oops"))

    assert len(play(Failing(), conversation(3)).records) == 1


def test_after_the_time_limit_nothing_is_sent_and_everything_is_waited_for() -> None:
    async def go(due_times: list[float] | None) -> Outcome:
        server, outcome = FakeServer(seconds=0.06), Outcome()
        limits = Limits(1, seconds=0.1)
        await run_load(calls(6), server.send, outcome, due_times=due_times, limits=limits, on_done=lambda record: None)
        return outcome

    for due_times in (None, [0.0, 0.01, 0.02, 0.03, 5.0, 60.0]):
        outcome = asyncio.run(go(due_times))
        assert len(outcome.records) + outcome.unsent == 6
        assert outcome.unsent >= 3
        assert all(record.sent < 0.1 for record in outcome.records)
        assert not outcome.interrupted


def test_a_conversation_does_not_go_on_after_the_time_limit() -> None:
    assert len(play(FakeServer(), conversation(3, pause=30.0), seconds=0.05).records) == 1
