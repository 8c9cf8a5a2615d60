"""More and more load, until the server gives no more."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence

from client.arrivals.concurrency import Concurrency
from client.arrivals.gamma import Gamma
from client.experiment import Experiment, Level, Run
from client.options import LoadFlags
from client.summary import Summary

GAIN = 1.05
"""Output throughput that grows by less is no more throughput."""

KEEPS_UP = 0.9
"""A server that ends fewer requests than this share of those that come falls behind."""

GOOD_ENOUGH = 0.9
"""The share of requests that must keep to the service levels, where there are any."""


async def sweep(experiment: Experiment, burstiness: float) -> AsyncGenerator[list[Run], None]:
    """The runs of each level, one per target, until all targets are saturated or somebody stops it.

    `--max-concurrency` is the last level of a sweep over concurrency, and a limit of each other one.
    """
    flags = experiment.options.load
    history: list[list[Run]] = []
    for number in range(flags.sweep_steps):
        level = _level(flags, burstiness, number)
        runs = await experiment.run(level)
        yield runs
        history.append(runs)
        by_target = list(zip(*history, strict=True))
        stopped = any(run.summary.interrupted for run in runs)
        highest = flags.sweep == "concurrency" and level.concurrency == flags.max_concurrency
        if stopped or highest or all(is_saturated(list(one)) for one in by_target):
            return


def _level(flags: LoadFlags, burstiness: float, number: int) -> Level:
    at = flags.sweep_start * flags.sweep_factor**number
    if flags.sweep == "rate":
        return Level(Gamma(request_rate=at, burstiness=burstiness), flags.max_concurrency, at, number)
    concurrency = min(max(1, round(at)), flags.max_concurrency or sys.maxsize)
    return Level(Concurrency(), concurrency, concurrency, number)


def is_saturated(runs: Sequence[Run]) -> bool:
    """Whether more load than in the last of `runs`, all of one target, is of no use."""
    last = runs[-1]
    if not last.summary.completed or _misses_service_levels(last.summary):
        return True
    if isinstance(last.level.arrival, Gamma):
        return completion_rate(last.summary) < KEEPS_UP * last.level.at
    if len(runs) < 3:
        return False
    *before, second_last, last_but = (run.summary.output_throughput for run in runs)
    return max(second_last, last_but) < GAIN * max(before)


def completion_rate(summary: Summary) -> float:
    """Requests that ended per second, from the first end until the last was due: the tail of a run says nothing."""
    last_due = max(record.due for record in summary.records)
    ends = sorted(record.finished for record in summary.records if record.finished <= last_due)
    return (len(ends) - 1) / (last_due - ends[0]) if len(ends) > 1 else 0.0


def _misses_service_levels(summary: Summary) -> bool:
    return summary.good is not None and summary.good < GOOD_ENOUGH * (summary.completed + summary.failed)
