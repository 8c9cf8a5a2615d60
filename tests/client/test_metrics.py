"""The definitions of the latencies, on records with known times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client.metrics import measure
from client.record import Arrival, RequestRecord

RECORD = RequestRecord(
    request_id="a",
    prompt_len=8,
    due=1.0,
    sent=1.5,
    finished=4.25,
    arrivals=(Arrival(2.0, "one"), Arrival(3.0, "two"), Arrival(4.0, "six")),
    prompt_tokens=7,
    completion_tokens=3,
)


def test_latencies_start_when_the_request_was_due() -> None:
    one = measure(RECORD)
    assert (one.ttft, one.e2el, one.client_queue_time) == (1.0, 3.25, 0.5)
    assert one.tpot == pytest.approx((3.25 - 1.0) / 2)
    assert one.itl.tolist() == [1.0, 1.0]


def test_a_single_token_has_no_tpot_and_no_gap() -> None:
    one = measure(replace(RECORD, arrivals=RECORD.arrivals[:1], completion_tokens=1))
    assert one.tpot is None
    assert one.itl.size == 0


def test_decode_speed_of_hidden_tokens() -> None:
    arrivals = tuple(Arrival(4 + (i + 1) / 20, "tok ") for i in range(20))
    one = measure(RequestRecord("a", 8, 0, 0, 5.0, arrivals, completion_tokens=100))
    assert one.tpot is not None
    assert 1 / one.tpot == pytest.approx(20, rel=0.05)
    assert one.ttft == pytest.approx(4.05)
