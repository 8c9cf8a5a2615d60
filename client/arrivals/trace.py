"""Requests when they were recorded, or faster, or slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.errors import BenchError
from client.flags import flag
from client.prompts import Session
from client.values import real


@dataclass(frozen=True, kw_only=True)
class Trace:
    """See the module."""

    speed: float = flag(
        "--trace-speed",
        parse=real(0, inclusive=False),
        default=1.0,
        metavar="X",
        shown="1",
        help="2 sends what was recorded in an hour within half an hour",
    )

    def due_times(self, sessions: Sequence[Session], _rng: np.random.Generator) -> list[float]:
        """See `Arrival`."""
        dues = [session.due for session in sessions if session.due is not None]
        if len(dues) < len(sessions):
            raise BenchError("--arrival trace needs a dataset with times: --dataset-name trace")
        return [(due - min(dues)) / self.speed for due in dues]

    def describe(self) -> str:
        """See `Arrival`."""
        return "as recorded" if self.speed == 1 else f"as recorded, {self.speed:g} times as fast"


ARRIVAL = Trace
