"""Requests at even distances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.pace import Rated
from client.prompts import Session


@dataclass(frozen=True, kw_only=True)
class Constant(Rated):
    """See the module."""

    def due_times(self, sessions: Sequence[Session], _rng: np.random.Generator) -> list[float]:
        """See `Arrival`."""
        return [i / self.rate for i in range(len(sessions))]

    def describe(self) -> str:
        """See `Arrival`."""
        return f"{self.rate:g} per second, evenly"


ARRIVAL = Constant
