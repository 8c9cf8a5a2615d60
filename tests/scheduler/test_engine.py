"""The async engine: every stream ends exactly once, whatever happens to its reader, its step or its engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from scheduler.engine import AsyncEngine
from scheduler.errors import EngineDead, EngineDraining, RequestRejected
from scheduler.plan import StepPlan, StepResult
from scheduler.request import TokenEvent
from scheduler.scheduler import Scheduler
from scheduler.stats import StepStats
from scheduler.stream import TokenStream
from tests.scheduler.fakes import FakeRunner, config, request


class Gate:
    """A runner that stops in a step until it is let go, or raises when told to."""

    def __init__(self) -> None:
        self.runner = FakeRunner()
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.failures = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.entered.set()
        assert self.open.wait(10)
        result = self.runner.execute(plan)
        if self.failures > 0:
            self.failures -= 1
            raise RuntimeError("the runner is told to fail")
        return result


def drive(
    test: Callable[[AsyncEngine, Gate], Awaitable[None]],
    clock: Callable[[], float] = time.monotonic,
    **changes: object,
) -> None:
    """Run `test` with an engine, and check afterwards that every page came back."""

    async def main() -> None:
        gate = Gate()
        engine = AsyncEngine(Scheduler(config(**changes)), gate, clock=clock)
        await engine.start()
        try:
            await asyncio.wait_for(test(engine, gate), 20)
        finally:
            gate.open.set()
            assert await engine.stop()
        stats = engine.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert stats.pages_free == stats.pages_total

    asyncio.run(main())


async def read(stream: TokenStream) -> list[TokenEvent]:
    async with stream:
        return [event async for event in stream]


def tokens(events: list[TokenEvent], index: int = 0) -> list[int]:
    return [token for event in events if event.index == index for token in event.tokens]


def endings(events: list[TokenEvent]) -> list[str]:
    return [event.finish.reason for event in events if event.finish is not None]


def test_many_streams_get_their_own_tokens_and_one_ending_each() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        streams = [engine.submit(request(str(number), 5 + number, 3 + number)) for number in range(20)]
        results = await asyncio.gather(*map(read, streams))
        for number, events in enumerate(results):
            assert tokens(events) == [7] * (3 + number)
            assert endings(events) == ["length"]
        assert await engine.drained(1)

    drive(test)


def test_choices_of_a_request_end_one_by_one() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        events = await read(engine.submit(request("a", 5, 4, n=3)))
        assert [tokens(events, index) for index in range(3)] == [[7] * 4] * 3
        assert endings(events) == ["length"] * 3

    drive(test)


def test_a_slow_reader_gets_merged_events() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        stream = engine.submit(request("a", 5, 50))
        assert await engine.drained(5)
        events = await read(stream)
        assert len(events) == 1
        assert tokens(events) == [7] * 50

    drive(test)


def test_leaving_a_stream_aborts_and_returns_the_pages() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        async with engine.submit(request("a", 5, 150)) as stream:
            async for _ in stream:
                break
        assert await engine.drained(5)
        assert engine.stats().pages_free == engine.stats().pages_total

    drive(test)


def test_leaving_while_the_step_is_under_way() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        gate.open.clear()
        async with engine.submit(request("a", 5, 150)):
            await asyncio.to_thread(gate.entered.wait, 5)
        assert engine.stats().pages_free < engine.stats().pages_total
        gate.open.set()
        assert await engine.drained(5)

    drive(test)


def test_stopping_one_choice_leaves_the_others() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        async with engine.submit(request("a", 5, 30, n=2)) as stream:
            events = []
            async for event in stream:
                events.append(event)
                if event.index == 0:
                    stream.stop(0)
        assert sorted(endings(events)) == ["length", "stop"]
        assert len(tokens(events, 1)) == 30

    drive(test)


def test_a_failing_step_ends_its_requests_and_the_engine_goes_on() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        gate.failures = 1
        failed = await read(engine.submit(request("a", 5, 5)))
        assert endings(failed) == ["error"]
        assert engine.unhealthy_reason() is None
        assert endings(await read(engine.submit(request("b", 5, 5)))) == ["length"]

    drive(test)


def test_the_log_names_the_requests_of_a_failed_step_as_their_senders_do(caplog: pytest.LogCaptureFixture) -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        gate.failures = 1
        streams = [
            engine.submit(request(name, 5, 5, sender_id=sender))
            for name, sender in (("a", "order-7"), ("b", "order-7"), ("c", None))
        ]
        await asyncio.gather(*map(read, streams))

    drive(test)
    assert [record.message for record in caplog.records if record.exc_info] == [
        "a step failed, which ends request(s) c, order-7"
    ]


def test_a_runner_that_only_fails_ends_the_engine_and_every_stream() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        gate.failures = 1000
        streams = [engine.submit(request(str(number), 5, 5)) for number in range(8)]
        results = await asyncio.gather(*map(read, streams))
        assert [endings(events) for events in results] == [["error"]] * 8
        assert engine.unhealthy_reason() is not None
        with pytest.raises(EngineDead):
            engine.submit(request("late", 5, 5))

    drive(test, max_num_seqs=1)


def test_a_fault_in_the_scheduler_itself_ends_every_stream() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        class Broken:
            def step_done(self, step: StepStats) -> None:
                raise ValueError("a bug outside of the runner")

        engine._observer = Broken()
        streams = [engine.submit(request(str(number), 5, 5)) for number in range(3)]
        results = await asyncio.gather(*map(read, streams))
        assert [endings(events) for events in results] == [["error"]] * 3
        assert engine.unhealthy_reason() is not None

    drive(test, max_num_seqs=1)


def test_streams_end_even_if_the_books_cannot_be_closed() -> None:
    async def main() -> None:
        gate = Gate()
        gate.open.clear()
        scheduler = Scheduler(config())
        engine = AsyncEngine(scheduler, gate)
        await engine.start()
        stream = engine.submit(request("a", 5, 40))
        await asyncio.to_thread(gate.entered.wait, 5)
        scheduler._ledger = None  # type: ignore[assignment]
        gate.open.set()
        events = await asyncio.wait_for(read(stream), 10)
        assert endings(events) == ["error"]
        assert engine.unhealthy_reason() is not None
        await engine.stop()

    asyncio.run(main())


def test_a_late_stop_does_not_reach_a_later_request_of_the_same_id() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        first = engine.submit(request("a", 5, 1))
        await read(first)
        second = engine.submit(request("a", 5, 30))
        first.stop(0)
        assert endings(await read(second)) == ["length"]

    drive(test)


def test_a_stream_that_is_left_and_entered_again_loses_nothing() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        async with engine.submit(request("a", 5, 3, n=3)) as stream:
            assert await engine.drained(5)
            seen = set()
            for _ in range(3):
                async for event in stream:
                    seen.add(event.index)
                    break
        assert seen == {0, 1, 2}

    drive(test)


def test_draining_sends_newcomers_away_and_finishes_the_rest() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        stream = engine.submit(request("a", 5, 40))
        engine.begin_drain()
        with pytest.raises(EngineDraining):
            engine.submit(request("b", 5, 5))
        assert await engine.drained(5)
        assert endings(await read(stream)) == ["length"]

    drive(test)


def test_an_idle_engine_is_drained_at_once() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        engine.begin_drain()
        assert await engine.drained(0)

    drive(test)


def test_a_drain_that_runs_out_of_time_ends_streams_with_an_error() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        gate.open.clear()
        stream = engine.submit(request("a", 5, 40))
        waiting = engine.submit(request("b", 5, 40))
        engine.begin_drain()
        drain = asyncio.create_task(engine.drained(0.05))
        ended = await read(waiting)
        gate.open.set()
        assert not await drain
        for events in (ended, await read(stream)):
            assert [event.finish.error for event in events if event.finish] == [
                "the server shut down before the request was complete"
            ]

    drive(test, max_num_seqs=1)


def test_a_drain_does_not_wait_for_a_step_that_never_ends() -> None:
    async def main() -> None:
        gate = Gate()
        gate.open.clear()
        engine = AsyncEngine(Scheduler(config()), gate, stop_seconds=0.05)
        await engine.start()
        stream = engine.submit(request("a", 5, 40))
        await asyncio.to_thread(gate.entered.wait, 5)
        engine.begin_drain()
        assert not await engine.drained(0)
        assert endings(await read(stream)) == ["error"]
        gate.open.set()
        await engine.stop()

    asyncio.run(main())


def test_stopping_ends_streams_even_in_mid_step() -> None:
    async def main() -> None:
        gate = Gate()
        gate.open.clear()
        engine = AsyncEngine(Scheduler(config()), gate)
        await engine.start()
        stream = engine.submit(request("a", 5, 40))
        await asyncio.to_thread(gate.entered.wait, 5)
        stop = asyncio.create_task(engine.stop())
        assert endings(await read(stream)) == ["error"]
        gate.open.set()
        await stop

    asyncio.run(main())


class Clock:
    """Tells the time it is set to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_stuck_step_makes_the_engine_unhealthy_until_it_moves() -> None:
    clock = Clock()

    async def test(engine: AsyncEngine, gate: Gate) -> None:
        clock.now += 1000
        assert engine.unhealthy_reason() is None, "an idle engine is well, however long it is idle"
        gate.open.clear()
        stream = engine.submit(request("a", 5, 2))
        await asyncio.to_thread(gate.entered.wait, 5)
        clock.now += 119
        assert engine.unhealthy_reason() is None
        clock.now += 2
        assert engine.unhealthy_reason() == "a step has been running for more than 120 s"
        gate.open.set()
        await read(stream)
        assert engine.unhealthy_reason() is None

    drive(test, clock=clock)


def test_requests_for_which_no_step_begins_make_the_engine_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    async def test(engine: AsyncEngine, gate: Gate) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "plan", lambda _: None)
            clock.now += 1000
            stream = engine.submit(request("a", 5, 2))
            await asyncio.sleep(0)
            assert engine.unhealthy_reason() is None
            clock.now += 121
            assert engine.unhealthy_reason() == "requests wait, but no step has begun for more than 120 s"
        await give_up(stream)
        assert engine.unhealthy_reason() is None

    drive(test, clock=clock)


async def give_up(stream: TokenStream) -> None:
    """Leave `stream` as a client does that gives up."""
    async with stream:
        pass


class Mortal(ThreadPoolExecutor):
    """Its thread dies with the first step, and nobody hears of it."""

    def submit(self, work: Callable[..., object], /, *arguments: object, **options: object) -> Future[Any]:
        if not arguments:  # no step
            return super().submit(work)

        def die() -> None:
            with suppress(RuntimeError):
                work(*arguments)

        thread = threading.Thread(target=die)
        thread.start()
        thread.join()
        return Future()


def test_a_dead_compute_thread_makes_the_engine_unhealthy() -> None:
    async def main() -> None:
        gate = Gate()
        gate.failures = 1
        engine = AsyncEngine(Scheduler(config()), gate, executor=Mortal(1))
        await engine.start()
        stream = engine.submit(request("a", 5, 2))
        await asyncio.to_thread(gate.entered.wait, 5)
        assert engine.unhealthy_reason() == "the thread that computes has died"
        await engine.stop()
        assert endings(await read(stream)) == ["error"]

    asyncio.run(main())


def test_a_loop_that_ends_by_itself_ends_the_engine_and_every_stream() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        gate.open.clear()
        stream = engine.submit(request("a", 5, 2))
        await asyncio.to_thread(gate.entered.wait, 5)
        assert engine._task is not None
        engine._task.cancel()
        assert await engine.death() == engine.unhealthy_reason() == "the engine's loop has ended"
        assert endings(await read(stream)) == ["error"]

    drive(test)


def test_a_step_that_never_ends_does_not_keep_the_engine_from_stopping() -> None:
    async def main() -> None:
        gate = Gate()
        gate.open.clear()
        engine = AsyncEngine(Scheduler(config()), gate, stop_seconds=0.05)
        await engine.start()
        stream = engine.submit(request("a", 5, 2))
        await asyncio.to_thread(gate.entered.wait, 5)
        assert not await engine.stop()
        assert endings(await read(stream)) == ["error"]
        gate.open.set()

    asyncio.run(main())


def test_a_refused_request_leaves_nothing_behind() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        with pytest.raises(RequestRejected):
            engine.submit(request("a", 5000, 5))
        stream = engine.submit(request("a", 5, 5))
        with pytest.raises(RequestRejected, match="in use"):
            engine.submit(request("a", 5, 5))
        assert endings(await read(stream)) == ["length"]

    drive(test)


def test_hundreds_of_readers_leave_at_random() -> None:
    async def test(engine: AsyncEngine, gate: Gate) -> None:
        async def visit(number: int) -> None:
            async with engine.submit(request(str(number), 1 + number % 30, 20)) as stream:
                seen = 0
                async for event in stream:
                    seen += len(event.tokens)
                    if number % 3 == 0 and seen > number % 7:
                        return

        await asyncio.gather(*map(visit, range(300)))
        assert await engine.drained(5)

    drive(test)
