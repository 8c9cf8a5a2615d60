"""Events come out whole however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from client.sse import EventDecoder

STREAM = (
    ": keep-alive\n\n"
    'data: {"text": "häß 🙂 \u2028 \x0b"}\r\n\r\n'
    "event: token\nid: 7\ndata:no space\n\n"
    "data: two\ndata: lines\n\n"
    "\n\n"
    "data: [DONE]\n\n"
).encode()
EVENTS = ['{"text": "häß 🙂 \u2028 \x0b"}', "no space", "two\nlines", "[DONE]"]


def decode(chunks: list[bytes]) -> list[str]:
    decoder = EventDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.close()


@given(st.sets(st.integers(1, len(STREAM) - 1)))
def test_cuts_do_not_matter(cuts: set[int]) -> None:
    chunks = [STREAM[a:b] for a, b in pairwise([0, *sorted(cuts), len(STREAM)])]
    assert decode(chunks) == EVENTS


def test_an_event_is_given_as_soon_as_it_is_complete() -> None:
    decoder = EventDecoder()
    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"\ndata: b") == ["a"]


def test_the_end_of_the_stream_completes_the_last_event() -> None:
    assert decode([b"data: a\n\ndata: b"]) == ["a", "b"]


def test_bytes_that_are_no_utf8_do_not_raise() -> None:
    assert decode([b"data: \xff\n\n"]) == ["�"]
