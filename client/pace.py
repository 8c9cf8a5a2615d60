"""What arrivals have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from client.errors import BenchError
from client.flags import flag
from client.values import rate


@dataclass(frozen=True, kw_only=True)
class Rated:
    """Base of the arrivals at a steady rate."""

    request_rate: float = flag(
        "--request-rate",
        parse=rate,
        default=math.inf,
        metavar="R",
        help="requests per second; default: all at once, or as --max-concurrency allows",
        shown="",
    )

    @property
    def rate(self) -> float:
        """A finite rate. Raises BenchError if none was given."""
        if math.isinf(self.request_rate):
            raise BenchError("this --arrival needs --request-rate R")
        return self.request_rate


def gamma_times(rng: np.random.Generator, count: int, request_rate: float, burstiness: float) -> list[float]:
    """`count` ascending times in seconds, the first at 0, `request_rate` a second on average.

    Gaps are gamma-distributed with shape `burstiness`: 1 is a Poisson process, below is burstier, above steadier.
    """
    gaps = rng.gamma(burstiness, 1 / (request_rate * burstiness), size=count)
    return [float(due) for due in np.cumsum(gaps) - gaps[0]]
