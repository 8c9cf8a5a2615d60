"""Stop strings, whatever the pieces in which the text comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.stop_strings import StopStrings
from tests.server.test_detokenizer import cut

LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Character by character: the text before (or with) the first stop string to be complete, and that string."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(LETTERS, STOPS, st.lists(st.integers(0, 12), max_size=8), st.booleans())
def test_the_end_does_not_depend_on_the_pieces(text: str, stops: list[str], places: list[int], include: bool) -> None:
    watch = StopStrings(stops, include=include)
    come = shown = ""
    for piece in cut(text.encode(), places):
        come += piece.decode()
        shown += watch.push(piece.decode())
        if watch.found is not None:
            break
        begun = [stop[:length] for stop in stops for length in range(len(stop))]
        held = max(len(beginning) for beginning in begun if come.endswith(beginning))
        assert shown == come[: len(come) - held], "what may be a stop string is held back, and nothing else"
    else:
        shown += watch.flush()
    assert (shown, watch.found) == naive(text, stops, include)


@given(LETTERS, STOPS, st.integers(0, 12))
def test_nothing_stops_before_it_may(text: str, stops: list[str], earliest: int) -> None:
    watch = StopStrings(stops)
    shown = ""
    for number, letter in enumerate(text, start=1):
        shown += watch.push(letter, may_stop=number >= earliest)
        if watch.found is not None:
            assert number >= earliest
            assert text[:number].endswith(watch.found)
            assert shown + watch.found == text[:number]
            return
    assert shown + watch.flush() == text
    ends = [end for end in range(max(1, earliest), len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    assert ends == []


@pytest.mark.parametrize("length", range(1, len("END_OF_ANSWER")))
def test_the_beginning_of_a_stop_string_is_ordinary_text_if_nothing_follows(length: int) -> None:
    watch = StopStrings(["END_OF_ANSWER"])
    beginning = "END_OF_ANSWER"[:length]
    assert watch.push("so " + beginning) == "so "
    assert watch.flush() == beginning


def test_no_more_is_held_back_than_needed() -> None:
    watch = StopStrings(["abc", "cx"])
    assert watch.push("ab") == ""
    assert watch.push("ab") == "ab"
    assert watch.push("y") == "aby"
    assert watch.push("abcx"[:2]) == ""
    assert watch.push("cx") == ""
    assert watch.found == "abc"


def test_of_two_that_end_together_the_longer_counts() -> None:
    watch = StopStrings(["c", "bc"])
    assert watch.push("abc") == "a"
    assert watch.found == "bc"
