"""From the records of a run to all that a report shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from client.goodput import count_good
from client.metrics import Measured, measure, samples
from client.record import RequestRecord
from client.runner import Outcome
from client.timeline import FloatArray, TokenCounter

LATE_SEND_S = 0.01


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
class ClientHealth:
    """How late the client's own loop woke up (percentiles, in seconds), and how much of one core it used."""

    lag_p50: float
    lag_p99: float
    cpu_share: float


@dataclass(frozen=True, slots=True)
class Summary:
    """All that a report shows of one run. Times are in seconds, distributions in milliseconds.

    `good` is None unless service levels were asked for, `answers_right` unless answers were checked.
    """

    planned: int
    unsent: int
    interrupted: bool
    duration: float
    measured: tuple[Measured, ...]
    failed_requests: tuple[RequestRecord, ...]
    distributions: dict[str, Distribution]
    objectives: Mapping[str, float]
    good: int | None
    answers_right: int | None
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    late_sends: int
    max_late_send: float
    client: ClientHealth

    @property
    def completed(self) -> int:
        """Requests that succeeded."""
        return len(self.measured)

    @property
    def failed(self) -> int:
        """Requests that were sent and did not succeed."""
        return len(self.failed_requests)

    @property
    def records(self) -> list[RequestRecord]:
        """All requests that were sent and ended, by the time they were due."""
        records = [*(one.record for one in self.measured), *self.failed_requests]
        return sorted(records, key=lambda record: record.due)

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

    @property
    def request_throughput(self) -> float:
        """Successful requests per second."""
        return self.per_second(self.completed)

    @property
    def output_throughput(self) -> float:
        """Generated tokens per second."""
        return self.per_second(self.total_output_tokens)

    @property
    def answers_checked(self) -> int:
        """Successful requests whose answer can be wrong."""
        return sum(one.record.expects is not None for one in self.measured)

    def per_second(self, amount: float) -> float:
        """`amount` over the duration of the run."""
        return amount / self.duration if self.duration else 0.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a summary is to hold: distributions of `metrics` with `percentiles` (0 - 100); objectives in ms."""

    metrics: Sequence[str]
    percentiles: Sequence[float]
    objectives: Mapping[str, float]
    count_tokens: TokenCounter | None = None


def summarise(outcome: Outcome, planned: int, wanted: Wanted) -> Summary:
    """Sums up a run of `planned` requests."""
    records = tuple(outcome.records)
    measured = tuple(measure(record, wanted.count_tokens) for record in records if record.failure is None)
    late = np.array([record.sent - record.due for record in records])
    answers = [one.record for one in measured if one.record.expects is not None]
    lags = outcome.client.lags or [0.0]
    return Summary(
        planned=planned,
        unsent=outcome.unsent,
        interrupted=outcome.interrupted,
        duration=outcome.duration,
        measured=measured,
        failed_requests=tuple(record for record in records if record.failure),
        distributions={name: _distribution(samples(measured, name), wanted.percentiles) for name in wanted.metrics},
        objectives=wanted.objectives,
        good=count_good(measured, wanted.objectives) if wanted.objectives else None,
        answers_right=sum(record.is_right for record in answers) if answers else None,
        max_output_tokens_per_s=_busiest_second(measured),
        max_concurrent_requests=_peak_concurrency(records),
        late_sends=int(np.sum(late > LATE_SEND_S)),
        max_late_send=float(late.max(initial=0.0)),
        client=ClientHealth(_percentile(lags, 50), _percentile(lags, 99), outcome.client.cpu_share),
    )


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


def _percentile(values: Sequence[float], percentile: float) -> float:
    return float(np.percentile(values, percentile))
