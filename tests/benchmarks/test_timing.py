"""Rates from the moments at which tokens arrived."""

from __future__ import annotations

import pytest

from benchmarks.engines.timing import decode_rate, first_token, window

STAGGERED = [
    [1.0, 2.0, 3.0, 4.0, 5.0],  # decodes while the second prompt is still read
    [3.0, 4.0, 5.0],
]


def test_the_window_opens_with_the_last_first_token_and_closes_with_the_slowest_sequence() -> None:
    assert window(STAGGERED, 2) == (3.0, 5.0)
    assert window([[1.0, 2.0, 3.0], [1.0, 2.5, 4.5]], 2) == (1.0, 4.5)


@pytest.mark.parametrize("arrivals", [[[1.0, 2.0], []], [[1.0, 2.0, 3.0], [3.0]], [[1.0, 2.0, 3.0], [3.0, 4.0]]])
def test_the_window_is_open_until_every_sequence_has_brought_enough(arrivals: list[list[float]]) -> None:
    assert window(arrivals, 2) is None
    with pytest.raises(ValueError, match="ended before"):
        decode_rate(arrivals, 2)


def test_a_run_for_first_tokens_only_is_over_when_all_are_there() -> None:
    assert window([[], [2.0]], 0) is None
    assert window([[1.0], [2.0]], 0) == (2.0, 2.0)


def test_the_rate_counts_the_timed_tokens_of_all_sequences() -> None:
    assert decode_rate(STAGGERED, 2) == 2 * 2 / (5.0 - 3.0)


def test_tokens_of_the_opening_step_that_are_heard_late_do_not_raise_the_rate() -> None:
    exact = [[3.0, 4.0, 5.0], [2.0, 3.0, 4.0, 5.0]]
    late = [[3.0, 4.0, 5.0], [2.0, 3.0 + 1e-4, 4.0 + 1e-4, 5.0 + 1e-4]]
    assert decode_rate(late, 2) == pytest.approx(decode_rate(exact, 2), rel=1e-3)


def test_the_time_to_the_first_token_is_a_mean_over_sequences() -> None:
    assert first_token(STAGGERED) == 2.0
