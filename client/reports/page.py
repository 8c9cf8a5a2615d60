"""One HTML file with everything in it: readable without a network, by day and by night, on a phone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from client.experiment import Run
from client.notes import notes
from client.options import Options
from client.reports import charts
from client.reports.chart import COLOURS, WIDTH, Chart
from client.reports.comparison import comparison
from client.reports.table import totals
from client.reports.words import LABELS, facts, name
from client.summary import FailureGroup, Summary


@dataclass(frozen=True, slots=True)
class _RunView:
    """What the page shows of one run, all of it ready to print."""

    name: str
    colour: int
    facts: dict[str, str]
    tiles: list[tuple[str, str]]
    totals: list[tuple[str, str]]
    latency_heads: list[str]
    latencies: list[tuple[str, list[str]]]
    failures: list[FailureGroup]
    notes: list[str]


def result_page(runs: Sequence[Run], options: Options) -> str:
    """The page. Everything that came from outside is escaped."""
    environment = Environment(
        loader=PackageLoader("client.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [
        ("Load and what it costs", charts.sweep_charts(runs)),
        ("Latency", charts.latency_charts(runs)),
        ("Over time", charts.time_charts(runs)),
        ("The server's own account", charts.server_charts(runs)),
    ]
    return environment.get_template("page.html").render(
        title=options.report.label or f"{runs[0].target.model} under load",
        date=f"{runs[0].date:%Y-%m-%d %H:%M %Z}",
        runs=[_view(number, run, runs, options) for number, run in enumerate(runs)],
        comparison=comparison(runs, options.report.metric_percentiles) if len(runs) > 1 else None,
        sections=[(heading, _with_something(found)) for heading, found in sections if _with_something(found)],
        metadata=dict(options.report.metadata),
        width=WIDTH,
    )


def _with_something(found: Sequence[Chart]) -> list[Chart]:
    return [chart for chart in found if chart.drawn]


def _view(number: int, run: Run, runs: Sequence[Run], options: Options) -> _RunView:
    summary = run.summary
    return _RunView(
        name=name(run, runs),
        colour=number % COLOURS,
        facts=facts(run, options),
        tiles=_tiles(summary),
        totals=totals(summary),
        latency_heads=list(next(iter(summary.distributions.values())).named()),
        latencies=[
            (LABELS[metric], list(map(_ms, one.named().values()))) for metric, one in summary.distributions.items()
        ],
        failures=summary.failures,
        notes=notes(summary),
    )


def _tiles(summary: Summary) -> list[tuple[str, str]]:
    """What one wants to know first: label and value."""
    tiles = [
        ("requests per second", f"{summary.request_throughput:.2f}"),
        ("output tokens per second", f"{summary.output_throughput:.1f}"),
    ]
    for metric, words in (("ttft", "to the first token"), ("tpot", "per token after it"), ("e2el", "per request")):
        if metric in summary.distributions:
            tiles.append((f"{words}, median", _duration(summary.distributions[metric].median)))
    finished = summary.completed + summary.failed
    if summary.good is not None:
        tiles.append(("of requests kept to the service levels", f"{summary.good / max(1, finished):.0%}"))
    if summary.answers_right is not None:
        tiles.append(("of answers were right", f"{summary.answers_right / max(1, summary.answers_checked):.0%}"))
    return [*tiles, ("of requests failed", f"{summary.failed / max(1, finished):.0%}")]


def _ms(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _duration(ms: float) -> str:
    """Milliseconds, or seconds from one on."""
    return f"{ms / 1000:.2f} s" if ms >= 1000 else f"{_ms(ms)} ms"
