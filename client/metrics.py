"""From records to a summary.

Every latency starts when the request was due, so that a client held up by the server does not hide the wait:

- ttft: until the first token
- tpot: (end - first token) / (tokens - 1), per request of more than one token
- itl: gaps between neighbouring tokens, pooled over all requests
- e2el: until the end of the stream
- client_queue_time: until the request was sent
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.record import RequestRecord
from client.runner import Outcome
from client.timeline import FloatArray, Timeline, TokenCounter, token_timeline

METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time")
LATE_SEND_S = 0.01


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished request and its latencies in seconds. `tpot` is None for a single token."""

    record: RequestRecord
    timeline: Timeline
    ttft: float
    tpot: float | None
    e2el: float
    client_queue_time: float

    @property
    def itl(self) -> FloatArray:
        """Gaps between neighbouring tokens, one fewer than tokens."""
        return np.diff(self.timeline.times)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of one metric, in milliseconds; all NaN without samples."""

    mean: float
    median: float
    std: float
    percentiles: dict[float, float]

    def named(self) -> dict[str, float]:
        """The numbers under their short names: mean, median, std, p99, p99.9, ..."""
        tail = {f"p{p:g}": value for p, value in self.percentiles.items()}
        return {"mean": self.mean, "median": self.median, "std": self.std} | tail


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one kind, with the message of the first."""

    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Summary:
    """All that a report shows. Times are in seconds, distributions in milliseconds."""

    planned: int
    interrupted: bool
    duration: float
    measured: tuple[Measured, ...]
    failed_requests: tuple[RequestRecord, ...]
    distributions: dict[str, Distribution]
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    late_sends: int
    max_late_send: float
    loop_lag_p99: float

    @property
    def completed(self) -> int:
        """Requests that succeeded."""
        return len(self.measured)

    @property
    def failed(self) -> int:
        """Requests that were sent and did not succeed."""
        return len(self.failed_requests)

    @property
    def failures(self) -> list[FailureGroup]:
        """The failed requests by kind, the most frequent first."""
        failures = [record.failure for record in self.failed_requests if record.failure]
        examples = {failure.kind: failure.message for failure in reversed(failures)}
        counts = Counter(failure.kind for failure in failures).most_common()
        return [FailureGroup(kind, count, examples[kind]) for kind, count in counts]

    @property
    def total_input_tokens(self) -> int:
        """Prompt tokens of the successful requests."""
        return sum(one.record.input_tokens for one in self.measured)

    @property
    def total_output_tokens(self) -> int:
        """Generated tokens of the successful requests."""
        return sum(len(one.timeline.times) for one in self.measured)

    def per_second(self, amount: float) -> float:
        """`amount` over the duration of the run."""
        return amount / self.duration if self.duration else 0.0


def measure(record: RequestRecord, count_tokens: TokenCounter | None = None) -> Measured:
    """The latencies of a record without failure."""
    timeline = token_timeline(record, count_tokens)
    tokens = len(timeline.times)
    return Measured(
        record=record,
        timeline=timeline,
        ttft=record.arrivals[0].at - record.due,
        tpot=float(record.finished - timeline.times[0]) / (tokens - 1) if tokens > 1 else None,
        e2el=record.finished - record.due,
        client_queue_time=record.sent - record.due,
    )


def summarise(
    outcome: Outcome,
    *,
    planned: int,
    metrics: Sequence[str],
    percentiles: Sequence[float],
    count_tokens: TokenCounter | None = None,
) -> Summary:
    """Sums up a run of `planned` requests; `metrics` of METRICS get a distribution with `percentiles` (0 - 100)."""
    records = outcome.records
    measured = tuple(measure(record, count_tokens) for record in records if record.failure is None)
    late = np.array([record.sent - record.due for record in records])
    return Summary(
        planned=planned,
        interrupted=outcome.interrupted,
        duration=outcome.duration,
        measured=measured,
        failed_requests=tuple(record for record in records if record.failure),
        distributions={metric: _distribution(_samples(measured, metric), percentiles) for metric in metrics},
        max_output_tokens_per_s=_busiest_second(measured),
        max_concurrent_requests=_peak_concurrency(records),
        late_sends=int(np.sum(late > LATE_SEND_S)),
        max_late_send=float(late.max(initial=0.0)),
        loop_lag_p99=float(np.percentile(outcome.loop_lags, 99)) if outcome.loop_lags else 0.0,
    )


def _samples(measured: Sequence[Measured], metric: str) -> FloatArray:
    if metric == "itl":
        return np.concatenate([np.empty(0), *(one.itl for one in measured)])
    values = (getattr(one, metric) for one in measured)
    return np.array([value for value in values if value is not None], dtype=np.float64)


def _distribution(seconds: FloatArray, percentiles: Sequence[float]) -> Distribution:
    ms = seconds * 1000 if seconds.size else np.array([np.nan])
    return Distribution(
        mean=float(ms.mean()),
        median=float(np.median(ms)),
        std=float(ms.std()),
        percentiles={p: float(np.percentile(ms, p)) for p in percentiles},
    )


def _busiest_second(measured: Sequence[Measured]) -> float:
    """The most output tokens in any whole second since the start."""
    times = np.concatenate([np.empty(0), *(one.timeline.times for one in measured)])
    return float(np.bincount(times.astype(np.int64)).max(initial=0))


def _peak_concurrency(records: Sequence[RequestRecord]) -> int:
    """The most requests in flight at once. One that ends as another starts makes room for it."""
    times = np.array([time for record in records for time in (record.sent, record.finished)])
    steps = np.tile([1, -1], len(records))
    return int(np.cumsum(steps[np.lexsort((steps, times))]).max(initial=0))
