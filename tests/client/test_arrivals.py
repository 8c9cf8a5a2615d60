"""Arrival plans: their rate, their shape, their seed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from client.errors import BenchError
from client.plugins import load_all
from client.prompts import Prompt, Session

ARRIVALS = load_all("client.arrivals", "ARRIVAL")
KNOBS: dict[str, dict[str, Any]] = {
    "constant": {"request_rate": 8.0},
    "poisson": {"request_rate": 8.0},
    "gamma": {"request_rate": 8.0},
    "ramp": {"start_rps": 2.0, "end_rps": 20.0},
}


def sessions(count: int) -> list[Session]:
    return [Session((Prompt("x", 1, 1),), due=i / 4) for i in range(count)]


def due_times(name: str, count: int, seed: int = 0, **knobs: Any) -> list[float]:
    arrival = ARRIVALS[name](**KNOBS.get(name, {}) | knobs)
    dues: list[float] = arrival.due_times(sessions(count), np.random.default_rng(seed))
    return dues


@pytest.mark.parametrize("name", ARRIVALS.keys() - {"concurrency"})
def test_plans_begin_at_once_and_ascend_and_the_seed_decides(name: str) -> None:
    dues = due_times(name, 50, seed=3)
    assert dues[0] == 0
    assert dues == sorted(dues)
    assert dues == due_times(name, 50, seed=3)
    assert len(dues) == 50


@pytest.mark.parametrize("name", ARRIVALS)
def test_an_arrival_is_a_dataclass_of_flags_that_describes_itself(name: str) -> None:
    assert all("flag" in one.metadata for one in fields(ARRIVALS[name]))
    assert isinstance(ARRIVALS[name](**KNOBS.get(name, {})).describe(), str)


def test_concurrency_plans_nothing() -> None:
    assert ARRIVALS["concurrency"]().due_times(sessions(3), np.random.default_rng(0)) is None


def test_a_burst_is_all_at_once() -> None:
    assert due_times("burst", 3) == [0.0, 0.0, 0.0]


def test_constant_is_even() -> None:
    assert due_times("constant", 4) == [0.0, 0.125, 0.25, 0.375]


@pytest.mark.parametrize(("name", "burstiness"), [("poisson", None), ("gamma", 0.5), ("gamma", 1.0), ("gamma", 4.0)])
def test_rate_and_shape(name: str, burstiness: float | None) -> None:
    gaps = np.diff(due_times(name, 20_001, **({} if burstiness is None else {"burstiness": burstiness})))
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx((burstiness or 1.0) ** -0.5, rel=0.05)


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 11.0), ("exponential", 40**0.5)])
def test_a_ramp_goes_from_one_rate_to_the_other(strategy: str, middle: float) -> None:
    gaps = np.diff(due_times("ramp", 30_000, strategy=strategy))
    rates = [1 / part.mean() for part in (gaps[:1000], gaps[14_500:15_500], gaps[-1000:])]
    assert rates == pytest.approx([2.0, middle, 20.0], rel=0.15)


def test_a_trace_is_replayed_at_its_times_or_faster() -> None:
    assert due_times("trace", 3) == [0.0, 0.25, 0.5]
    assert due_times("trace", 3, speed=5.0) == [0.0, 0.05, 0.1]


@pytest.mark.parametrize("name", ["constant", "poisson", "gamma"])
def test_a_rate_is_needed(name: str) -> None:
    with pytest.raises(BenchError, match="needs --request-rate R"):
        due_times(name, 1, request_rate=np.inf)


def test_a_ramp_needs_both_ends() -> None:
    with pytest.raises(BenchError, match="--ramp-up-start-rps and --ramp-up-end-rps"):
        due_times("ramp", 1, end_rps=None)


def test_a_trace_needs_times() -> None:
    with pytest.raises(BenchError, match="needs a dataset with times"):
        ARRIVALS["trace"]().due_times([Session((Prompt("x", 1, 1),))], np.random.default_rng(0))
