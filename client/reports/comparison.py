"""Several runs beside each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from client.experiment import Run
from client.metrics import samples
from client.summary import Summary


@dataclass(frozen=True, slots=True)
class Comparison:
    """A line of cells for each run. The first `texts` columns are text, the others numbers."""

    heads: list[str]
    rows: list[list[str]]
    texts: int
    verdict: list[str]


def comparison(runs: Sequence[Run], percentiles: Sequence[float]) -> Comparison:
    """Latencies are in ms: the median, and the highest of `percentiles`. `runs` are in the order of levels."""
    texts: list[tuple[str, Callable[[Run], str]]] = []
    if any(run.target.name for run in runs):
        texts.append(("target", lambda run: run.target.name))
    if len({run.level.number for run in runs}) > 1:
        texts.append(("load", lambda run: run.level.describe()))
    numbers = _columns(runs, max(percentiles, default=99.0))
    rows = [[*(of(run) for _, of in texts), *(_cell(of(run.summary)) for _, of in numbers)] for run in runs]
    heads = [head for head, _ in (*texts, *numbers)]
    return Comparison(heads, rows, len(texts), [*_best_levels(runs), *_ratios(runs)])


def _columns(runs: Sequence[Run], tail: float) -> list[tuple[str, Callable[[Summary], float]]]:
    def latency(metric: str, percentile: float) -> Callable[[Summary], float]:
        def of(summary: Summary) -> float:
            values = samples(summary.measured, metric)
            return float(np.percentile(values, percentile)) * 1000 if values.size else math.nan

        return of

    columns: list[tuple[str, Callable[[Summary], float]]] = [
        ("req/s", lambda summary: summary.request_throughput),
        ("out tok/s", lambda summary: summary.output_throughput),
    ]
    for metric in ("ttft", "tpot", "e2el"):
        columns += [(f"{metric} p{p:g}", latency(metric, p)) for p in (50.0, tail)]
    if any(run.summary.good is not None for run in runs):
        columns.append(("good %", lambda summary: _percent(summary.good or 0, summary.completed + summary.failed)))
    if any(run.summary.answers_right is not None for run in runs):
        columns.append(("right %", lambda summary: _percent(summary.answers_right or 0, summary.answers_checked)))
    return [*columns, ("failed", lambda summary: float(summary.failed))]


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else math.nan


def _cell(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if value == round(value) or value >= 1000 else f"{value:.2f}"


def _best_levels(runs: Sequence[Run]) -> list[str]:
    """Of a sweep: at which load each target generates most."""
    if len({run.level.number for run in runs}) < 2:
        return []
    sentences = []
    for target, of_target in groupby(sorted(runs, key=lambda run: run.target.name), lambda run: run.target.name):
        best = max(of_target, key=lambda run: run.summary.output_throughput)
        named = f"{target} generates" if target else "Generates"
        sentences.append(f"{named} most with {best.level.describe()}: {best.summary.output_throughput:.1f} tokens/s.")
    return sentences


def _ratios(runs: Sequence[Run]) -> list[str]:
    """Of several targets under one load: how the others do against the first."""
    first, *others = runs
    if not others or len({run.level.number for run in runs}) > 1:
        return []
    sentences = []
    for other in others:
        throughput = _ratio(other.summary.output_throughput, first.summary.output_throughput)
        medians = [
            float(np.median(samples(run.summary.measured, "e2el"))) if run.summary.completed else math.nan
            for run in (other, first)
        ]
        sentences.append(
            f"{other.target.name} generates {throughput} times as many tokens/s as {first.target.name}; "
            f"the median request takes {_ratio(*medians)} times as long."
        )
    return sentences


def _ratio(a: float, b: float) -> str:
    return f"{a / b:.2f}" if b and not math.isnan(a / b) else "?"
