"""Axes reach over the values and are labelled with round numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.reports.scale import exact, label, linear, logarithmic


@given(st.floats(1e-6, 1e12))
def test_a_linear_axis_holds_the_highest_value_and_few_ticks(highest: float) -> None:
    scale = linear(highest, 200, 0)
    assert highest <= scale.high * (1 + 1e-9) <= 2.6 * highest
    assert 3 <= len(scale.ticks()) <= 8
    assert scale.place(np.array([0.0, scale.high])).tolist() == [200, 0]


@given(st.floats(1e-3, 1e6), st.floats(31, 1e7))
def test_a_logarithmic_axis_has_ticks_and_keeps_the_order(lowest: float, ratio: float) -> None:
    scale = logarithmic(lowest, lowest * ratio, 0, 400)
    places = scale.place(np.array([lowest, lowest * ratio**0.5, lowest * ratio]))
    assert 0 < places[0] < places[1] < places[2] < 400
    assert places[1] == pytest.approx(200, abs=1)
    assert 1 <= len(scale.ticks()) <= 9
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks())


def test_an_axis_without_values() -> None:
    assert exact(0.0, 0, 1).ticks()
    assert linear(0.0, 0, 1).high == 1


@pytest.mark.parametrize(("value", "text"), [(0.25, "0.25"), (1500, "1500"), (20_000, "20k"), (2_500_000, "2.5M")])
def test_labels_are_short(value: float, text: str) -> None:
    assert label(value) == text
