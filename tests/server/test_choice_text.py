"""Tokens to text: pieces stay beside the text they make, and join to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.request import TokenLogprob
from server.choice_text import ChoiceText, Echo, Piece, TextOptions

TOKENS = st.lists(
    st.sampled_from([b"a", b"b", b"ab", b"\xe2", b"\x82", b"\xac", b"a\xe2", b"\x82\xac", b"\xacb", b"", b"\xff"]),
    max_size=12,
)
STOPS = st.lists(st.sampled_from(["ab", "b", "aab", "€", "a€", "€b", "b\ufffd"]), max_size=2)


class Table:
    """Token n stands for the n-th of the given bytes."""

    def __init__(self, entries: list[bytes]) -> None:
        self._entries = entries

    def __getitem__(self, token: int) -> bytes:
        return self._entries[token]


def follow(
    tokens: list[bytes], takes: list[bool], *, ends: bool = False, echo: Echo | None = None, **options: object
) -> tuple[list[tuple[str, tuple[Piece, ...]]], ChoiceText]:
    """Push all tokens, taking after those for which `takes` is true, and at the end."""
    text = ChoiceText(Table(tokens), TextOptions(pieces=True, **options))  # type: ignore[arg-type]
    if echo is not None:
        text.put_in_front(echo)
    taken = []
    for token in range(len(tokens)):
        text.push(token, TokenLogprob(token, -1.0), is_end=ends and token == len(tokens) - 1)
        if text.stop_string is not None:
            break
        if token < len(takes) and takes[token]:
            taken.append(text.take())
    text.end()
    return [*taken, text.take()], text


@given(TOKENS, STOPS, st.lists(st.booleans(), max_size=12), st.booleans())
def test_pieces_join_to_the_text_however_often_it_is_taken(
    tokens: list[bytes], stops: list[str], takes: list[bool], include: bool
) -> None:
    deltas, text = follow(tokens, takes, stop=tuple(stops), include_stop=include)
    whole, _ = follow(tokens, [], stop=tuple(stops), include_stop=include)
    shown = "".join(delta for delta, _ in deltas)
    pieces = [piece for _, pieces in deltas for piece in pieces]
    assert shown == whole[0][0]
    assert "".join(piece.text for piece in pieces) == shown
    assert [piece.token for piece in pieces] == list(range(text.num_tokens)), "one piece for each token, in order"
    if "\ufffd" not in shown:
        assert b"".join(piece.data for piece in pieces).decode() == shown
    assert all(piece.logprob is not None and piece.logprob.token == piece.token for piece in pieces)


@given(TOKENS, STOPS, st.lists(st.booleans(), max_size=12))
def test_no_piece_comes_before_its_text(tokens: list[bytes], stops: list[str], takes: list[bool]) -> None:
    deltas, _ = follow(tokens, takes, stop=tuple(stops))
    shown = told = 0
    for text, pieces in deltas:
        shown += len(text)
        told += sum(len(piece.text) for piece in pieces)
        assert told <= shown
    assert told == shown


@given(TOKENS)
def test_without_stop_strings_the_text_is_all_bytes_decoded(tokens: list[bytes]) -> None:
    deltas, text = follow(tokens, [True] * len(tokens))
    assert "".join(delta for delta, _ in deltas) == b"".join(tokens).decode(errors="replace")
    assert text.num_tokens == len(tokens)


def test_the_token_that_completes_a_stop_string_counts_and_shows_nothing_of_it() -> None:
    deltas, text = follow([b"one", b" S", b"TOP it", b"never"], [True] * 4, stop=("STOP",))
    assert [delta for delta, _ in deltas] == ["one", " ", ""]
    assert [[piece.text for piece in pieces] for _, pieces in deltas] == [["one"], [], [" ", ""]]
    assert text.num_tokens == 3
    assert text.stop_string == "STOP"


def test_a_stop_string_that_hides_half_a_character_hides_its_bytes() -> None:
    deltas, _ = follow([b"x", b"\xe2", b"\x82", b"\xacuro"], [True] * 4, stop=("€u",))
    pieces = [piece for _, pieces in deltas for piece in pieces]
    assert [(piece.text, piece.data) for piece in pieces] == [("x", b"x"), ("", b""), ("", b""), ("", b"")]


@pytest.mark.parametrize(("include", "text"), [(False, "ok"), (True, "ok<end>")])
def test_the_token_that_ends_a_choice_is_shown_only_with_stop_strings(include: bool, text: str) -> None:
    deltas, choice = follow([b"ok", b"<end>"], [], ends=True, include_stop=include)
    assert deltas[0][0] == text
    assert choice.num_tokens == 2


def test_min_tokens_keeps_stop_strings_from_ending_the_text() -> None:
    deltas, text = follow([b"a", b"STOP", b"b", b"STOP", b"c"], [], stop=("STOP",), min_tokens=3)
    assert deltas[0][0] == "aSTOPb"
    assert text.num_tokens == 4


def test_an_echo_stands_in_front_and_is_no_place_for_stop_strings() -> None:
    echo = Echo((Piece(90, "STOP ", b"STOP "), Piece(91, "", b"\xe2", 1)), b"\xe2")
    deltas, text = follow([b"\x82\xac", b"!"], [True], echo=echo, stop=("STOP",))
    assert deltas[0][0] == "STOP €"
    assert [piece.token for _, pieces in deltas for piece in pieces] == [90, 91, 0, 1]
    assert (text.num_tokens, text.stop_string) == (2, None)


def test_without_logprobs_no_piece_is_kept() -> None:
    text = ChoiceText(Table([b"a"]), TextOptions())
    text.push(0)
    text.end()
    assert text.take() == ("a", ())
