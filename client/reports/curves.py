"""Lines to draw: what a run was like over time, and how its latencies are spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.metrics import samples
from client.scrape import Series
from client.summary import Summary
from client.timeline import FloatArray

MAX_POINTS = 240
MAX_ROWS = 160
BINS = 120


@dataclass(frozen=True, slots=True)
class Points:
    """`x` and `y`, both [n]; `x` ascends, except where they are the ends of spans, two by two."""

    x: FloatArray
    y: FloatArray


def cumulative(summary: Summary, metric: str) -> Points:
    """Share of the samples of `metric` that are at most x milliseconds."""
    values = np.sort(samples(summary.measured, metric)) * 1000
    if not values.size:
        return Points(np.empty(0), np.empty(0))
    shares = np.linspace(0, 1, min(MAX_POINTS, values.size + 1))
    return Points(np.quantile(values, shares), shares)


def tokens_per_second(summary: Summary) -> Points:
    """Output tokens over the run, in even steps of time."""
    times = np.concatenate([np.empty(0), *(one.timeline.times for one in summary.measured)])
    edges = _edges(summary.duration)
    counts, _ = np.histogram(times, edges)
    return Points((edges[:-1] + edges[1:]) / 2, counts / np.diff(edges))


def in_flight(summary: Summary) -> Points:
    """Requests between sending and end, at even steps of time."""
    at = _edges(summary.duration)
    sent = np.sort([record.sent for record in summary.records])
    ended = np.sort([record.finished for record in summary.records])
    number = np.searchsorted(sent, at, side="right") - np.searchsorted(ended, at, side="right")
    return Points(at, number.astype(np.float64))


def first_token_times(summary: Summary) -> Points:
    """When each request was due, and how many milliseconds it waited for its first token."""
    chosen = sorted(summary.measured, key=lambda one: one.record.due)
    if len(chosen) > MAX_POINTS * 4:
        chosen = [chosen[int(i)] for i in np.linspace(0, len(chosen) - 1, MAX_POINTS * 4)]
    return Points(np.array([one.record.due for one in chosen]), np.array([one.ttft * 1000 for one in chosen]))


def request_spans(summary: Summary) -> tuple[Points, Points]:
    """A row for each request, in the order they were due: its wait for the first token, and the writing after it.

    Both [2 rows]: where a span begins, where it ends. Of more than MAX_ROWS requests, evenly chosen ones. A failed
    request that brought nothing has only waited.
    """
    records = summary.records
    if len(records) > MAX_ROWS:
        records = [records[int(i)] for i in np.linspace(0, len(records) - 1, MAX_ROWS)]
    firsts = [record.arrivals[0].at if record.arrivals else record.finished for record in records]
    waits = [(record.due, first) for record, first in zip(records, firsts, strict=True)]
    writes = [(first, record.finished) for record, first in zip(records, firsts, strict=True)]
    rows = np.repeat(np.arange(1.0, len(records) + 1), 2)
    return Points(np.array(waits).ravel(), rows), Points(np.array(writes).ravel(), rows)


def scraped(series: Series) -> Points:
    """What the server said of itself, thinned out to what can be seen."""
    return _thin(Points(np.array(series.times), np.array(series.values)))


def pair(x: Sequence[float], y: Sequence[float]) -> Points:
    """Points of two lists, by x; those that are not numbers are left out."""
    both = sorted((a, b) for a, b in zip(x, y, strict=True) if np.isfinite(a) and np.isfinite(b))
    return Points(np.array([a for a, _ in both]), np.array([b for _, b in both]))


def _edges(duration: float) -> FloatArray:
    """Steps of at least a tenth of a second."""
    return np.linspace(0, max(duration, 0.1), max(1, min(BINS, int(duration * 10))) + 1)


def _thin(points: Points) -> Points:
    if points.x.size <= MAX_POINTS:
        return points
    chosen = np.linspace(0, points.x.size - 1, MAX_POINTS).astype(np.int64)
    return Points(points.x[chosen], points.y[chosen])
