"""Service levels: which answers were good enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from client.metrics import Measured

OBJECTIVES = ("ttft", "tpot", "e2el")


def meets(one: Measured, objectives: Mapping[str, float]) -> bool:
    """Whether each latency is within its objective in milliseconds. A single token takes no time per token."""
    return all((getattr(one, metric) or 0.0) * 1000 <= limit for metric, limit in objectives.items())


def count_good(measured: Iterable[Measured], objectives: Mapping[str, float]) -> int:
    """How many meet all `objectives`."""
    return sum(meets(one, objectives) for one in measured)
