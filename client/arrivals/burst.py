"""All requests are due at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.prompts import Session


@dataclass(frozen=True, kw_only=True)
class Burst:
    """See the module."""

    def due_times(self, sessions: Sequence[Session], _rng: np.random.Generator) -> list[float]:
        """See `Arrival`."""
        return [0.0] * len(sessions)

    def describe(self) -> str:
        """See `Arrival`."""
        return "all at once"


ARRIVAL = Burst
