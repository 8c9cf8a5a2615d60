"""Requests at a rate that rises, or falls, from the first to the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from client.errors import BenchError
from client.flags import flag
from client.prompts import Session
from client.values import real


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """See the module. Gaps are random, as in a Poisson process."""

    strategy: Literal["linear", "exponential"] = flag(
        "--ramp-up-strategy", choices=["linear", "exponential"], default="linear", help="how the rate changes"
    )
    start_rps: float | None = flag(
        "--ramp-up-start-rps", parse=real(0, inclusive=False), metavar="R", help="requests per second at the beginning"
    )
    end_rps: float | None = flag(
        "--ramp-up-end-rps", parse=real(0, inclusive=False), metavar="R", help="requests per second at the end"
    )

    def due_times(self, sessions: Sequence[Session], rng: np.random.Generator) -> list[float]:
        """See `Arrival`."""
        start, end = self._ends()
        progress = np.linspace(0, 1, len(sessions))
        linear = self.strategy == "linear"
        rates = start + (end - start) * progress if linear else start * (end / start) ** progress
        gaps = rng.exponential(1 / rates)
        return [float(due) for due in np.cumsum(gaps) - gaps[0]]

    def describe(self) -> str:
        """See `Arrival`."""
        start, end = self._ends()
        return f"{start:g} to {end:g} per second ({self.strategy})"

    def _ends(self) -> tuple[float, float]:
        if self.start_rps is None or self.end_rps is None:
            raise BenchError("a ramp needs --ramp-up-start-rps and --ramp-up-end-rps")
        return self.start_rps, self.end_rps


ARRIVAL = Ramp
