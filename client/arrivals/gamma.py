"""Requests in bursts, or more evenly than chance would have it: gaps from a gamma distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.flags import flag
from client.pace import Rated, gamma_times
from client.prompts import Session
from client.values import real


@dataclass(frozen=True, kw_only=True)
class Gamma(Rated):
    """See the module."""

    burstiness: float = flag(
        "--burstiness",
        parse=real(0, inclusive=False),
        default=1.0,
        metavar="B",
        shown="1",
        help="of arrivals at a rate: 1 is Poisson, less comes in bursts, more evenly",
    )

    def due_times(self, sessions: Sequence[Session], rng: np.random.Generator) -> list[float]:
        """See `Arrival`."""
        return gamma_times(rng, len(sessions), self.rate, self.burstiness)

    def describe(self) -> str:
        """See `Arrival`."""
        return f"{self.rate:g} per second ({'Poisson' if self.burstiness == 1 else f'burstiness {self.burstiness:g}'})"


ARRIVAL = Gamma
