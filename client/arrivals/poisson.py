"""Requests of people who know nothing of each other: a Poisson process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.pace import Rated, gamma_times
from client.prompts import Session


@dataclass(frozen=True, kw_only=True)
class Poisson(Rated):
    """See the module."""

    def due_times(self, sessions: Sequence[Session], rng: np.random.Generator) -> list[float]:
        """See `Arrival`."""
        return gamma_times(rng, len(sessions), self.rate, burstiness=1.0)

    def describe(self) -> str:
        """See `Arrival`."""
        return f"{self.rate:g} per second (Poisson)"


ARRIVAL = Poisson
