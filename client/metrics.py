"""The latencies of one request.

Every latency starts when the request was due, so that a client held up by the server does not hide the wait:

- ttft: until the first token
- tpot: (end - first token) / (tokens - 1), per request of more than one token
- itl: gaps between neighbouring tokens, pooled over all requests
- e2el: until the end of the stream
- client_queue_time: until the request was sent
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from client.record import RequestRecord
from client.timeline import FloatArray, Timeline, TokenCounter, token_timeline

METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time")


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


def samples(measured: Iterable[Measured], metric: str) -> FloatArray:
    """All values of `metric`, in seconds: one per request that has it, of itl one per gap."""
    if metric == "itl":
        return np.concatenate([np.empty(0), *(one.itl for one in measured)])
    values = (getattr(one, metric) for one in measured)
    return np.array([value for value in values if value is not None], dtype=np.float64)
