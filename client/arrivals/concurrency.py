"""As many requests in flight as `--max-concurrency`: one is due the moment another ends. A closed loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.prompts import Session


@dataclass(frozen=True, kw_only=True)
class Concurrency:
    """See the module."""

    def due_times(self, sessions: Sequence[Session], rng: np.random.Generator) -> None:
        """See `Arrival`."""

    def describe(self) -> str:
        """See `Arrival`."""
        return ""


ARRIVAL = Concurrency
