"""When more load is of no use."""

from __future__ import annotations

from datetime import datetime

import pytest

from client.arrivals.concurrency import Concurrency
from client.arrivals.gamma import Gamma
from client.experiment import Level, Run
from client.record import Arrival, Failure, RequestRecord
from client.runner import Outcome
from client.summary import Wanted, summarise
from client.sweep import completion_rate, is_saturated
from client.targets import Target


def record(due: float, latency: float, tokens: int = 1) -> RequestRecord:
    end = due + latency
    return RequestRecord("r", 1, due, due, end, (Arrival(end, "x" * tokens),), completion_tokens=tokens)


def run(level: Level, records: list[RequestRecord], duration: float, objectives: dict[str, float] | None = None) -> Run:
    summary = summarise(Outcome(records, duration), len(records), Wanted([], [], objectives or {}))
    return Run(Target("", "http://h"), level, datetime.now().astimezone(), summary, {})


def at_throughput(tokens_per_second: int) -> Run:
    return run(Level(Concurrency(), 1), [record(0, 1, tokens_per_second)], 1.0)


@pytest.mark.parametrize(
    ("throughputs", "saturated"),
    [
        ([100], False),
        ([100, 101], False),
        ([100, 101, 102], True),
        ([100, 200, 205], False),
        ([100, 200, 205, 207], True),
        ([100, 200, 150, 260], False),
        ([100, 90, 80], True),
    ],
)
def test_two_levels_that_bring_nothing_are_enough(throughputs: list[int], saturated: bool) -> None:
    assert is_saturated([at_throughput(value) for value in throughputs]) is saturated


def at_rate(rate: float, latencies: list[float]) -> Run:
    records = [record(i / rate, latency) for i, latency in enumerate(latencies)]
    level = Level(Gamma(request_rate=rate), None, at=rate)
    return run(level, records, max(one.finished for one in records))


def test_a_server_that_keeps_up_is_not_saturated_however_long_it_takes() -> None:
    assert not is_saturated([at_rate(10.0, [2.0] * 60)])


def test_a_server_that_falls_behind_is_saturated() -> None:
    """Requests come every 0.1 s and end every 0.15 s."""
    behind = at_rate(10.0, [0.15 + 0.05 * i for i in range(60)])
    assert completion_rate(behind.summary) == pytest.approx(1 / 0.15, rel=0.02)
    assert is_saturated([behind])


def test_a_run_that_ended_nothing_before_the_last_came_is_saturated() -> None:
    assert is_saturated([at_rate(10.0, [60.0] * 5)])


def test_missed_service_levels_saturate() -> None:
    records = [record(0, 1.0)] * 8 + [record(0, 3.0)] * 2
    level = Level(Concurrency(), 1)
    assert is_saturated([run(level, records, 3.0, {"e2el": 2000.0})])
    assert not is_saturated([run(level, records, 3.0, {"e2el": 4000.0})])


def test_nothing_but_failures_saturates() -> None:
    failed = RequestRecord("r", 1, 0, 0, 1, failure=Failure("http_503", "full"))
    assert is_saturated([run(Level(Concurrency(), 1), [failed], 1.0)])
