"""Which plots a report has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import numpy as np

from client.experiment import Run
from client.metrics import samples
from client.reports import curves
from client.reports.chart import Chart, Line, Shape
from client.reports.curves import Points
from client.reports.words import LABELS, name

SECONDS_FROM_MS = 10_000.0
GREY = 7


def latency_charts(runs: Sequence[Run]) -> list[Chart]:
    """How each latency is spread: the share of requests, or of gaps, that took at most so long."""
    charts = []
    for metric in ("ttft", "tpot", "itl", "e2el"):
        unit, lines = _in_unit(_lines(runs, partial(_cumulative, metric)))
        what = "gaps" if metric == "itl" else "requests"
        charts.append(Chart(LABELS[metric], f"at most ({unit})", f"share of {what}", lines, y_top=1.0, x_log=True))
    return charts


def time_charts(runs: Sequence[Run]) -> list[Chart]:
    """What went on from the first request to the last."""
    of_run = "seconds since the start"
    dots = _lines(runs, lambda run: curves.first_token_times(run.summary), shape="dots")
    unit, dots = _in_unit(dots, along="y")
    charts = [
        Chart(
            "Output tokens",
            of_run,
            "tokens per second",
            _lines(runs, lambda run: curves.tokens_per_second(run.summary)),
        ),
        Chart("Requests in flight", of_run, "requests", _lines(runs, lambda run: curves.in_flight(run.summary))),
        Chart("Wait for the first token", "seconds when the request was due", unit, dots),
    ]
    if len(runs) == 1:
        waits, writes = curves.request_spans(runs[0].summary)
        spans = [Line("waiting", waits, GREY, "spans"), Line("writing", writes, 0, "spans")]
        charts.append(Chart("Each request: waiting (grey), then writing", of_run, "requests, as they were due", spans))
    return charts


def server_charts(runs: Sequence[Run]) -> list[Chart]:
    """What the servers said of themselves; those that said nothing of it have no plot."""
    at = "seconds since the start"
    charts = [
        Chart(
            "Sequences running, and waiting (dashed)",
            at,
            "sequences",
            [*_scraped(runs, "running"), *_scraped(runs, "waiting", dashed=True)],
        ),
        Chart("KV cache in use", at, "share of pages", _scraped(runs, "kv_usage"), y_top=1.0),
        Chart("Pages freed by eviction", at, "pages so far", _scraped(runs, "pages_freed")),
        Chart("Preemptions", at, "sequences so far", _scraped(runs, "preemptions")),
        Chart("Prefix cache", at, "tokens found so far", _scraped(runs, "prefix_hits")),
    ]
    return [chart for chart in charts if any(line.points.y.any() for line in chart.drawn)]


def sweep_charts(runs: Sequence[Run]) -> list[Chart]:
    """What each target gives at each level, and what it makes its users wait."""
    if len({run.level.number for run in runs}) < 2:
        return []
    by_target = [
        (target, sorted(of_target, key=lambda run: run.level.number))
        for target, of_target in groupby(sorted(runs, key=lambda run: run.target.name), lambda run: run.target.name)
    ]
    load = "requests at a time" if runs[0].level.concurrency == runs[0].level.at else "requests per second"

    def lines(x: Callable[[Run], float], y: Callable[[Run], float], tail: bool = False) -> list[Line]:
        return [
            Line(
                f"{target} p99" if tail else f"{target} median".strip(),
                curves.pair([x(run) for run in of_target], [y(run) for run in of_target]),
                number,
                "dashed" if tail else "marked",
            )
            for number, (target, of_target) in enumerate(by_target)
        ]

    def level(run: Run) -> float:
        return run.level.at

    def throughput(run: Run) -> float:
        return run.summary.output_throughput

    charts = [Chart("Throughput", load, "output tokens per second", lines(level, throughput))]
    for metric in ("ttft", "tpot"):
        both = [
            *lines(throughput, partial(_percentile, metric, 50)),
            *lines(throughput, partial(_percentile, metric, 99), tail=True),
        ]
        unit, both = _in_unit(both, along="y")
        charts.append(Chart(f"{LABELS[metric]}, median and p99 (dashed)", "output tokens per second", unit, both))
    return charts


def _lines(runs: Sequence[Run], of: Callable[[Run], Points], shape: Shape = "line") -> list[Line]:
    return [Line(name(run, runs), of(run), number, shape) for number, run in enumerate(runs)]


def _scraped(runs: Sequence[Run], key: str, *, dashed: bool = False) -> list[Line]:
    return [
        Line(name(run, runs), curves.scraped(run.server[key]), number, "dashed" if dashed else "line")
        for number, run in enumerate(runs)
        if key in run.server
    ]


def _in_unit(lines: list[Line], along: str = "x") -> tuple[str, list[Line]]:
    """Milliseconds, or seconds if they are many: the unit, and `lines` in it."""
    highest = max((float(getattr(line.points, along).max(initial=0.0)) for line in lines), default=0.0)
    if highest < SECONDS_FROM_MS:
        return "ms", lines
    scale = {"x": (1000.0, 1.0), "y": (1.0, 1000.0)}[along]
    return "s", [
        Line(line.name, Points(line.points.x / scale[0], line.points.y / scale[1]), line.colour, line.shape)
        for line in lines
    ]


def _cumulative(metric: str, run: Run) -> Points:
    return curves.cumulative(run.summary, metric)


def _percentile(metric: str, percentile: float, run: Run) -> float:
    values = samples(run.summary.measured, metric)
    return float(np.percentile(values, percentile)) * 1000 if values.size else float("nan")
