"""When the requests of an open loop are due."""

from __future__ import annotations

import math

import numpy as np


def due_times(count: int, request_rate: float, burstiness: float, seed: int) -> list[float]:
    """`count` ascending times in seconds, the first at 0, with `request_rate` requests a second on average.

    Gaps are gamma-distributed with shape `burstiness`: 1 is a Poisson process, below is burstier, above steadier.
    An infinite rate makes all of them due at once.
    """
    if math.isinf(request_rate):
        return [0.0] * count
    gaps = np.random.default_rng([seed, 1]).gamma(burstiness, 1 / (request_rate * burstiness), size=count)
    return [float(due) for due in np.cumsum(gaps) - gaps[0]]
