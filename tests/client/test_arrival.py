"""Arrival plans: their rate, their shape, their seed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from client.arrival import due_times


def test_an_infinite_rate_is_all_at_once() -> None:
    assert due_times(3, math.inf, 1.0, seed=0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_rate_and_shape(burstiness: float) -> None:
    dues = due_times(20_001, 8.0, burstiness, seed=1)
    gaps = np.diff(dues)
    assert dues[0] == 0
    assert np.all(gaps >= 0)
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_the_seed_decides() -> None:
    assert due_times(5, 1.0, 1.0, seed=3) == due_times(5, 1.0, 1.0, seed=3)
    assert due_times(5, 1.0, 1.0, seed=3) != due_times(5, 1.0, 1.0, seed=4)
