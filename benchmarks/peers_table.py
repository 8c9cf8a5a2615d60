"""Medians and ratios as Markdown tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.peers_figures import Metric

Figures = Mapping[str, float]
"""A number per metric key."""


def median_table(metrics: Sequence[Metric], engines: Mapping[str, Figures], limits: Mapping[str, Figures]) -> str:
    """A line per metric; a column per engine (by its heading), then the machine's limits."""
    columns = {**engines, **limits}
    rows = [
        [f"{metric.title} ({metric.unit})", *(_number(values.get(metric.key)) for values in columns.values())]
        for metric in metrics
    ]
    return _table(["", *columns], rows)


def ratio_table(metrics: Sequence[Metric], peers: Mapping[str, Figures]) -> str:
    """A line per metric, a column per peer, how many times as good ours is."""
    rows = [
        [metric.title, *(_times(values.get(metric.key)) for values in peers.values())]
        for metric in metrics
        if any(metric.key in values for values in peers.values())
    ]
    return _table(["", *peers], rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    widths = [max(3, width) for width in widths]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(cells, widths) for cells in [header, rule, *rows])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return f"| {first[0]:<{first[1]}} | " + " | ".join(f"{cell:>{width}}" for cell, width in others) + " |"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
