"""Tokens are counted and timed right, however they are packed into events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.record import Arrival, RequestRecord
from client.timeline import token_timeline


def record(arrivals: list[Arrival], tokens: int | None, sent: float = 0.0) -> RequestRecord:
    return RequestRecord("id", 8, sent, sent, arrivals[-1].at, tuple(arrivals), completion_tokens=tokens)


def words(text: str) -> int:
    return len(text.split())


def test_one_token_per_event_keeps_the_times_of_the_events() -> None:
    arrivals = [Arrival(1 + i / 10, " some" * (1 + i % 3)) for i in range(20)]
    timeline = token_timeline(record(arrivals, 20))
    assert timeline.times.tolist() == [arrival.at for arrival in arrivals]
    assert (timeline.counted_by, timeline.hides) == ("usage", False)


def test_packed_events_have_the_mean_gap_of_single_ones() -> None:
    single = token_timeline(record([Arrival(2 + i / 99, " tok") for i in range(100)], 100))
    packed = token_timeline(record([Arrival(2 + i / 24, " tok" * 4) for i in range(25)], 100))
    assert len(single.times) == len(packed.times) == 100
    assert np.diff(packed.times).mean() == pytest.approx(np.diff(single.times).mean())
    assert packed.times[3:8].tolist() == pytest.approx([2, *(2 + k / 96 for k in (1, 2, 3, 4))])


def test_longer_events_get_more_of_the_tokens() -> None:
    timeline = token_timeline(record([Arrival(0, "ab"), Arrival(1, "ab" * 7), Arrival(2, "ab" * 2)], 10))
    assert [int(np.sum(timeline.times <= t)) for t in (0, 1, 2)] == [2, 8, 10]


def test_a_running_count_is_believed_even_where_no_text_shows() -> None:
    arrivals = [Arrival(1, "", 1), Arrival(2, "", 2), Arrival(4, "abc", 6)]
    timeline = token_timeline(record(arrivals, 6))
    assert timeline.times.tolist() == [1, 2, 2.5, 3, 3.5, 4]
    assert not timeline.hides


def test_the_final_usage_settles_a_running_count() -> None:
    assert token_timeline(record([Arrival(1, "a", 1), Arrival(2, "b", 2)], 3)).times.tolist() == [1, 1.5, 2]


def test_hidden_tokens_are_laid_before_the_first_text() -> None:
    """80 tokens in 4 s without text, then 20 in 1 s: the speed is 20 tokens per second, not 99."""
    arrivals = [Arrival(4 + (i + 1) / 20, "tok ") for i in range(20)]
    timeline = token_timeline(record(arrivals, 100))
    assert timeline.hides
    assert len(timeline.times) == 100
    assert 1 / np.diff(timeline.times).mean() == pytest.approx(20, rel=0.02)


def test_a_tokenizer_finds_hidden_tokens_that_long_words_would_cover() -> None:
    arrivals = [Arrival(4 + i / 20, "incomprehensibilities ") for i in range(20)]
    assert not token_timeline(record(arrivals, 100)).hides
    assert token_timeline(record(arrivals, 100), words).hides


def test_tokens_counted_before_the_first_event_are_hidden_too() -> None:
    timeline = token_timeline(record([Arrival(4, "so", 81), Arrival(5, "on", 82)], 82))
    assert timeline.hides
    assert timeline.times[0] < 0.1


@pytest.mark.parametrize(("text", "tokens"), [("4", 2), ("x" * 99, 100), ("x" * 100, 110)])
def test_an_end_token_or_a_tenth_proves_no_hiding(text: str, tokens: int) -> None:
    assert not token_timeline(record([Arrival(1, c) for c in text], tokens)).hides


def test_without_usage_events_or_the_tokenizer_count() -> None:
    arrivals = [Arrival(1, "one two "), Arrival(2, "three four")]
    by_events = token_timeline(record(arrivals, None))
    by_tokenizer = token_timeline(record(arrivals, None), words)
    assert (len(by_events.times), by_events.counted_by) == (2, "events")
    assert (len(by_tokenizer.times), by_tokenizer.counted_by) == (4, "tokenizer")


def test_fewer_tokens_than_events() -> None:
    timeline = token_timeline(record([Arrival(float(i), "a") for i in range(5)], 2))
    assert timeline.times[[0, -1]].tolist() == [0, pytest.approx(4, abs=2)]
    assert len(timeline.times) == 2


arrival_lists = st.lists(
    st.tuples(st.floats(0, 5), st.text(min_size=1, max_size=9).filter(str.strip)), min_size=1, max_size=30
)


@given(arrival_lists, st.none() | st.integers(1, 300), st.booleans(), st.booleans())
def test_every_token_is_laid_between_sending_and_the_last_event(
    gaps: list[tuple[float, str]], tokens: int | None, continuous: bool, with_tokenizer: bool
) -> None:
    ats = np.cumsum([1 + gap for gap, _ in gaps])
    arrivals = [
        Arrival(float(at), text, i + 1 if continuous else None)
        for i, (at, (_, text)) in enumerate(zip(ats, gaps, strict=True))
    ]
    one = record(arrivals, tokens, sent=0.5)
    timeline = token_timeline(one, words if with_tokenizer else None)
    expected = tokens or (words(one.text) if with_tokenizer else len(arrivals))
    assert len(timeline.times) == (max(expected, len(arrivals)) if continuous else expected)
    assert np.all(np.diff(timeline.times) >= 0)
    assert timeline.times[0] >= (0.5 if timeline.hides else arrivals[0].at)
    assert timeline.times[-1] <= arrivals[-1].at
