"""A line for every request, as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO

from client.experiment import Run
from client.goodput import meets
from client.metrics import Measured
from client.record import RequestRecord

HEADS = (
    "target", "level", "request_id", "due_s", "sent_s", "finished_s", "input_tokens", "output_tokens",
    "ttft_ms", "tpot_ms", "e2el_ms", "good", "right", "failure", "message",
)  # fmt: skip


def result_csv(runs: Sequence[Run]) -> str:
    """All requests that ended, each run's by the time they were due; what does not apply is empty."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(HEADS)
    for run in runs:
        measured = {id(one.record): one for one in run.summary.measured}
        for record in run.summary.records:
            cells = _cells(record, measured.get(id(record)), run)
            writer.writerow([run.target.name, run.level.describe(), *cells])
    return text.getvalue()


def _cells(record: RequestRecord, one: Measured | None, run: Run) -> Iterator[object]:
    yield record.request_id
    yield from (f"{time:.6f}" for time in (record.due, record.sent, record.finished))
    yield record.input_tokens
    yield len(one.timeline.times) if one else record.completion_tokens or 0
    for latency in (one.ttft, one.tpot, one.e2el) if one else (None, None, None):
        yield None if latency is None else f"{latency * 1000:.3f}"
    objectives = run.summary.objectives
    yield int(one is not None and meets(one, objectives)) if objectives else None
    yield int(record.is_right) if one and record.expects is not None else None
    yield record.failure.kind if record.failure else None
    yield record.failure.message if record.failure else None
