"""Axes: from values to places on a drawing, and the round numbers to write beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from client.timeline import FloatArray

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low .. high` to `start .. end`; a logarithmic one needs `low` > 0."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, values: FloatArray) -> FloatArray:
        """Where `values` lie on the drawing."""
        low, high, at = (np.log(v) if self.log else v for v in (self.low, self.high, np.clip(values, self.low, None)))
        return np.asarray(self.start + (at - low) / (high - low) * (self.end - self.start), dtype=np.float64)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers within the range, about so many."""
        if self.log:
            return _decades(self.low, self.high, about)
        step = _round_step((self.high - self.low) / about)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def linear(highest: float, start: float, end: float) -> Scale:
    """From 0 to a round number not below `highest`."""
    highest = highest if math.isfinite(highest) and highest > 0 else 1.0
    step = _round_step(highest / 4)
    return Scale(0.0, math.ceil(highest / step - 1e-9) * step, start, end)


def exact(highest: float, start: float, end: float) -> Scale:
    """From 0 to `highest` itself."""
    return Scale(0.0, highest if highest > 0 else 1.0, start, end)


def logarithmic(lowest: float, highest: float, start: float, end: float) -> Scale:
    """From a little below `lowest` to a little above `highest`, both positive."""
    return Scale(lowest / 1.15, highest * 1.15, start, end, log=True)


def label(value: float) -> str:
    """A tick in few characters."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in STEPS if factor * power >= step * (1 - 1e-9))


def _decades(low: float, high: float, about: int) -> list[float]:
    """Of 1, 2 and 5 times powers of ten, as many as there is room for."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if len(found) <= about + 1:
            return found
    return found
