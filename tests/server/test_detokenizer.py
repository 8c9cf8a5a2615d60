"""Characters split over tokens, and bytes that are none."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.detokenizer import Detokenizer

FAMILY = "👨‍👩‍👧"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode), st.lists(st.integers(0, 40), max_size=20))
def test_pieces_join_to_what_decoding_at_once_gives(data: bytes, places: list[int]) -> None:
    detokenizer = Detokenizer()
    text = "".join(detokenizer.push(piece) for piece in cut(data, places)) + detokenizer.flush()
    assert text == data.decode(errors="replace")


@pytest.mark.parametrize("text", ["😀", "ř", "語", FAMILY, "a😀b"])
def test_a_character_appears_when_it_is_whole(text: str) -> None:
    detokenizer = Detokenizer()
    pieces = [detokenizer.push(bytes([byte])) for byte in text.encode()]
    assert [piece for piece in pieces if piece] == list(text)
    assert detokenizer.flush() == ""


def test_bytes_that_can_never_be_a_character_do_not_wait() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.push(b"\x80") == "\ufffd"
    assert detokenizer.push(b"\xe2") == ""
    assert detokenizer.num_pending == 1
    assert detokenizer.push(b"ok") == "\ufffdok"


def test_a_character_cut_off_at_the_end_is_told_of() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.push("😀".encode()[:2]) == ""
    assert detokenizer.flush() == "\ufffd"
