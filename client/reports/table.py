"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import fill, shorten

from client.experiment import Run
from client.notes import notes
from client.options import Options
from client.reports.comparison import comparison
from client.reports.words import LABELS, facts
from client.summary import Summary

LABEL_WIDTH = 34
NUMBER_WIDTH = 11
MIN_WIDTH = 78
MAX_FULL_TABLES = 4


def render_tables(runs: Sequence[Run], options: Options) -> str:
    """A table for each run, unless they are many; a line for each below, if there are several."""
    tables = []
    if len(runs) <= MAX_FULL_TABLES and options.load.sweep is None:
        tables = [render_table(run.summary, facts(run, options)) for run in runs]
    if len(runs) > 1:
        tables.append(render_comparison(runs, options, with_notes=not tables))
    return "\n\n".join(tables)


def render_table(summary: Summary, about: Mapping[str, str]) -> str:
    """A table of one screen. What it is `about` (label to value) comes first."""
    latencies = _latency_rows(summary)
    width = max(MIN_WIDTH, len(latencies[0]))
    lines = [
        " Serving benchmark result ".center(width, "="),
        *(f"{label + ':':<{LABEL_WIDTH}}{value}" for label, value in about.items()),
        "-" * width,
        *(f"{label + ':':<{LABEL_WIDTH}}{value:>{NUMBER_WIDTH}}" for label, value in totals(summary)),
    ]
    if summary.completed:
        lines += [" Latency (ms) ".center(width, "-"), *latencies]
    lines += _remarks(summary, width)
    return "\n".join([*lines, "=" * width])


def render_comparison(runs: Sequence[Run], options: Options, *, with_notes: bool) -> str:
    """A line for each run; with what is to be known of them below, if nothing else says it."""
    table = comparison(runs, options.report.metric_percentiles)
    widths = [max(map(len, column)) for column in zip(table.heads, *table.rows, strict=True)]
    width = max(MIN_WIDTH, sum(widths) + 2 * (len(widths) - 1))

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            f"{c:<{w}}" if i < table.texts else f"{c:>{w}}" for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        )

    lines = [" Comparison ".center(width, "="), line(table.heads), "-" * width, *map(line, table.rows)]
    if table.verdict:
        lines += ["-" * width, *(fill(sentence, width) for sentence in table.verdict)]
    if with_notes:
        for run in runs:
            if remarks := _remarks(run.summary, width):
                lines += [f"{run.target.name} {run.level.describe()}:".strip(), *remarks]
    return "\n".join([*lines, "=" * width])


def totals(summary: Summary) -> list[tuple[str, str]]:
    """What is one number: label and value."""
    tokens_in, tokens_out = summary.total_input_tokens, summary.total_output_tokens
    rows = [
        ("Successful requests", f"{summary.completed}"),
        ("Failed requests", f"{summary.failed}"),
        ("Benchmark duration (s)", f"{summary.duration:.2f}"),
        ("Total input tokens", f"{tokens_in}"),
        ("Total generated tokens", f"{tokens_out}"),
        ("Request throughput (req/s)", f"{summary.request_throughput:.2f}"),
        ("Output token throughput (tok/s)", f"{summary.output_throughput:.2f}"),
        ("Peak output throughput (tok/s)", f"{summary.max_output_tokens_per_s:.2f}"),
        ("Total token throughput (tok/s)", f"{summary.per_second(tokens_in + tokens_out):.2f}"),
        ("Peak concurrent requests", f"{summary.max_concurrent_requests}"),
    ]
    if summary.good is not None:
        rows.insert(6, ("Request goodput (req/s)", f"{summary.per_second(summary.good):.2f}"))
    if summary.answers_right is not None:
        rows.append(("Right answers", f"{summary.answers_right}/{summary.answers_checked}"))
    return rows


def _latency_rows(summary: Summary) -> list[str]:
    heads = list(next(iter(summary.distributions.values())).named())
    rows = [" " * LABEL_WIDTH + "".join(f"{head:>{NUMBER_WIDTH}}" for head in heads)]
    for metric, distribution in summary.distributions.items():
        numbers = ("-" if math.isnan(value) else f"{value:.2f}" for value in distribution.named().values())
        rows.append(f"{LABELS[metric]:<{LABEL_WIDTH}}" + "".join(f"{number:>{NUMBER_WIDTH}}" for number in numbers))
    return rows


def _remarks(summary: Summary, width: int) -> list[str]:
    lines = []
    if summary.failures:
        lines.append(" Failures ".center(width, "-"))
        lines += [shorten(f"{group.count:>6} {group.kind}: {group.example}", width) for group in summary.failures]
    if found := notes(summary):
        lines.append(" Notes ".center(width, "-"))
        lines += [fill(note, width, initial_indent="- ", subsequent_indent="  ") for note in found]
    return lines
