"""What a run adds up to."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import numpy as np
import pytest

from client.metrics import METRICS
from client.record import Arrival, Failure, RequestRecord
from client.runner import Outcome
from client.summary import Summary, Wanted, summarise
from client.watch import ClientWatch

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
FAILED = replace(RECORD, request_id="b", arrivals=(), failure=Failure("http_503", "full"))
WANTED = Wanted(METRICS, [50, 99, 99.9], {})


def shifted(seconds: float) -> RequestRecord:
    return replace(
        RECORD,
        due=RECORD.due + seconds,
        sent=RECORD.sent + seconds,
        finished=RECORD.finished + seconds,
        arrivals=tuple(replace(arrival, at=arrival.at + seconds) for arrival in RECORD.arrivals),
    )


def outcome(*records: RequestRecord, duration: float = 10.0) -> Outcome:
    return Outcome(list(records), duration)


def summary_of(*records: RequestRecord, duration: float = 10.0) -> Summary:
    return summarise(outcome(*records, duration=duration), 9, WANTED)


def test_a_stall_counts_for_every_request_that_was_due_in_it() -> None:
    """A server that freezes for 10 s of 60, at 20 requests per second: p95 is about 7 s, a sixth is affected."""
    dues = [i / 20 for i in range(1200)]
    records = []
    for i, due in enumerate(dues):
        end = max(due, 30.0) + 0.001 if 20 <= due < 30 else due + 0.001
        records.append(RequestRecord(str(i), 8, due, due, end, (Arrival(end, "x"),), completion_tokens=1))
    summary = summarise(outcome(*records), 1200, Wanted(["e2el"], [80, 95], {}))
    assert summary.distributions["e2el"].percentiles[95] == pytest.approx(7000, rel=0.02)
    assert summary.distributions["e2el"].percentiles[80] == pytest.approx(1)


def test_distributions_are_numpys_in_milliseconds() -> None:
    records = [RECORD, shifted(1), replace(shifted(2), due=2.0)]
    ttfts = np.array([1000.0, 1000.0, 2000.0])
    got = summary_of(*records).distributions["ttft"]
    assert (got.mean, got.median, got.std) == pytest.approx((ttfts.mean(), 1000.0, ttfts.std()))
    assert got.percentiles == pytest.approx({p: np.percentile(ttfts, p) for p in (50, 99, 99.9)})
    assert list(got.named()) == ["mean", "median", "std", "p50", "p99", "p99.9"]


def test_gaps_are_pooled_over_requests() -> None:
    packed = replace(RECORD, completion_tokens=5, arrivals=(Arrival(2, "a"), Arrival(4, "aaaa")))
    assert summary_of(RECORD, packed).distributions["itl"].mean == pytest.approx(1000 * (2 * 1.0 + 4 * 0.5) / 6)


def test_totals_count_successful_requests_only() -> None:
    summary = summary_of(RECORD, FAILED, replace(RECORD, prompt_tokens=None))
    assert (summary.completed, summary.failed, summary.planned) == (2, 1, 9)
    assert (summary.total_input_tokens, summary.total_output_tokens) == (7 + 8, 6)
    assert summary.per_second(summary.total_output_tokens) == pytest.approx(0.6)


def test_failures_by_kind_with_the_first_message() -> None:
    late = replace(FAILED, failure=Failure("timeout", "late"))
    again = replace(FAILED, failure=Failure("http_503", "still full"))
    groups = summary_of(late, FAILED, again, RECORD).failures
    assert [(group.kind, group.count, group.example) for group in groups] == [
        ("http_503", 2, "full"),
        ("timeout", 1, "late"),
    ]


def test_peak_concurrency_lets_a_request_start_where_another_ends() -> None:
    length = RECORD.finished - RECORD.sent
    assert summary_of(RECORD, shifted(length), shifted(2 * length)).max_concurrent_requests == 1
    assert summary_of(RECORD, shifted(0.5), FAILED, shifted(length)).max_concurrent_requests == 3


def test_busiest_second() -> None:
    assert summary_of(RECORD, shifted(1), shifted(1.5)).max_output_tokens_per_s == 3


def test_late_sends_are_counted_and_measured() -> None:
    punctual = replace(RECORD, sent=RECORD.due + 0.005)
    summary = summary_of(RECORD, punctual, FAILED)
    assert (summary.late_sends, summary.max_late_send) == (2, 0.5)


def test_nothing_measured_is_not_zero() -> None:
    summary = summary_of(FAILED, duration=0.0)
    assert all(isnan(value) for one in summary.distributions.values() for value in one.named().values())
    assert (summary.max_output_tokens_per_s, summary.max_concurrent_requests) == (0, 1)
    assert summary.per_second(5) == 0
    assert summary_of().failed == 0


def test_the_clients_own_health() -> None:
    client = ClientWatch([float(i) for i in range(101)], cpu_s=3, wall_s=4)
    health = summarise(Outcome(client=client), 0, Wanted([], [], {})).client
    assert (health.lag_p50, health.lag_p99, health.cpu_share) == (50, 99, 0.75)


def test_goodput_counts_the_requests_that_keep_to_all_objectives() -> None:
    """Of the records one is too slow to begin, one in between; a single token has no time per token to miss."""
    slow_start = replace(RECORD, due=0.0)
    slow_tokens = replace(RECORD, finished=9.0)
    single = replace(RECORD, arrivals=RECORD.arrivals[:1], completion_tokens=1)
    wanted = Wanted([], [], {"ttft": 1500.0, "tpot": 1200.0})
    summary = summarise(outcome(RECORD, slow_start, slow_tokens, single, FAILED), 5, wanted)
    assert summary.good == 2
    assert summary_of(RECORD).good is None


def test_answers_are_checked_where_something_is_expected() -> None:
    right, wrong = replace(RECORD, expects="two"), replace(RECORD, expects="ten")
    summary = summary_of(right, wrong, right, RECORD, replace(FAILED, expects="two"))
    assert (summary.answers_checked, summary.answers_right) == (3, 2)
    assert summary_of(RECORD).answers_right is None
