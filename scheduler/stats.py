"""What the engine tells the outside about itself: plain values, read by metrics and health checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges and running totals at one moment. Pages count over the whole pool; rows count over all lanes.

    Free are also the `pages_cached` that only the prefix cache holds. Of the tokens that sequences began with,
    `prefix_tokens_asked_total`, so many were found in it.
    """

    num_running: int
    num_waiting: int
    pages_total: int
    pages_free: int
    rows_kept: int
    rows_evicted_total: int
    pages_freed_total: int
    preemptions_total: int
    compressions_total: dict[str, int] = field(default_factory=dict)
    pages_cached: int = 0
    prefix_tokens_asked_total: int = 0
    prefix_tokens_found_total: int = 0

    @property
    def kv_cache_usage(self) -> float:
        """Share of the pool's pages in use, 0 to 1."""
        return 1.0 - self.pages_free / self.pages_total


@dataclass(frozen=True, slots=True)
class StepStats:
    """One step that ran: tokens computed, how many of them belong to prompts, sequences in it, seconds it took.

    `parts`: where the seconds went, by name; they add up to all of them.
    """

    num_tokens: int
    num_prompt_tokens: int
    num_sequences: int
    seconds: float
    parts: Mapping[str, float] = field(default_factory=dict)


class EngineObserver(Protocol):
    """Receives facts on the event loop. Must be quick and must not raise."""

    def step_done(self, step: StepStats) -> None:
        """Called after each step that computed something."""


class Observers:
    """Tells several observers of the same facts."""

    def __init__(self, *observers: EngineObserver) -> None:
        self._observers = observers

    def step_done(self, step: StepStats) -> None:
        """See `EngineObserver.step_done`."""
        for observer in self._observers:
            observer.step_done(step)


class NullObserver:
    """Ignores everything."""

    def step_done(self, step: StepStats) -> None:
        """See `EngineObserver.step_done`."""
