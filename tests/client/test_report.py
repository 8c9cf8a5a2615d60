"""What a person reads in the terminal, and what a program reads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from client.notes import notes
from client.record import Arrival, Failure, RequestRecord
from client.reports.result import summary_json
from client.reports.table import render_table
from client.runner import Outcome
from client.summary import Summary, Wanted, summarise
from client.watch import ClientWatch

GOOD = RequestRecord("a", 8, 0.0, 0.0, 1.0, (Arrival(0.5, "x"), Arrival(1.0, "y")), 8, 2)
BAD = replace(GOOD, request_id="b", arrivals=(), failure=Failure("http_503", "the queue is full " * 9))


def summary(*records: RequestRecord, lag: float = 0.0, cpu_s: float = 0.0, interrupted: bool = False) -> Summary:
    outcome = Outcome(list(records), 2.0, interrupted=interrupted, client=ClientWatch([lag], cpu_s, wall_s=2.0))
    return summarise(outcome, 5, Wanted(["ttft", "client_queue_time"], [50, 99.9], {}))


def test_the_table_is_aligned_and_fits_its_width() -> None:
    lines = render_table(summary(GOOD, BAD), {"Model": "m"}).splitlines()
    assert {len(line) for line in lines if line.startswith(("=", "-"))} == {len(lines[0])}
    assert all(len(line) <= len(lines[0]) for line in lines)
    rows = [line for line in lines if line.startswith(("Time to first", "Waiting"))]
    assert [row.split()[-5:] for row in rows] == [["500.00", "500.00", "0.00", "500.00", "500.00"], ["0.00"] * 5]
    assert {len(row) for row in rows} == {len(next(line for line in lines if "median" in line))}


def test_the_table_names_what_it_shows() -> None:
    table = render_table(summary(GOOD, BAD), {"Model": "m"})
    for line in (
        "Model:                            m",
        "Successful requests:                        1",
        "Failed requests:                            1",
        "Request throughput (req/s):              0.50",
        "Output token throughput (tok/s):         1.00",
        "Total token throughput (tok/s):          5.00",
        "1 http_503: the queue is full",
    ):
        assert line in table
    assert "Notes" not in table


def test_without_success_there_are_no_latencies() -> None:
    table = render_table(summary(BAD), {})
    assert "Latency" not in table
    assert "Failed requests:                            1" in table


QUICK = replace(GOOD, arrivals=(Arrival(0.5, "x"), Arrival(0.6, "y")), finished=0.6)


def test_a_lag_is_weighed_against_the_time_per_token() -> None:
    assert notes(summary(GOOD, lag=0.004)) == []
    assert notes(summary(GOOD, lag=0.024))[0].startswith("Careful")  # of 500 ms per token
    assert notes(summary(QUICK, lag=0.024))[0].startswith("INVALID")  # of 100 ms per token


@pytest.mark.parametrize(
    ("shown", "note"),
    [
        (summary(GOOD, interrupted=True), "Interrupted: 1 of 5 requests had finished"),
        (summary(replace(GOOD, completion_tokens=None)), "1 of 1 answers had no usage: each event counts as one token"),
        (summary(replace(GOOD, completion_tokens=50)), "1 of 1 answers counted tokens before the first text"),
        (
            summary(GOOD, replace(GOOD, due=-0.25)),
            "1 of 2 requests were sent more than 10 ms after they were due",
        ),
        (summary(QUICK, lag=0.05), "INVALID: the client itself was late (p99 50 ms)"),
        (summary(GOOD, lag=0.015), "Careful: the client itself was late (p99 15 ms)"),
        (summary(GOOD, cpu_s=1.98), "Careful: the client itself was late (p99 0 ms) and used 99% of a core"),
    ],
)
def test_notes_say_what_to_distrust(shown: Summary, note: str) -> None:
    (found,) = notes(shown)
    assert found.startswith(note)
    assert " Notes " in render_table(shown, {})
    assert summary_json(shown, detailed=False)["notes"] == [found]


def test_json_has_the_common_keys() -> None:
    result = summary_json(summary(GOOD, BAD), detailed=False)
    expected = {
        "duration": 2.0,
        "completed": 1,
        "failed": 1,
        "total_input_tokens": 8,
        "total_output_tokens": 2,
        "request_throughput": 0.5,
        "output_throughput": 1.0,
        "total_token_throughput": 5.0,
        "max_concurrent_requests": 2,
        "mean_ttft_ms": 500.0,
        "median_ttft_ms": 500.0,
        "std_ttft_ms": 0.0,
        "p50_ttft_ms": 500.0,
        "p99.9_ttft_ms": 500.0,
    }
    assert {key: result[key] for key in expected} == expected
    assert result["failures"]["http_503"]["count"] == 1
    assert "itls" not in result


def test_details_are_per_request() -> None:
    result = summary_json(summary(GOOD, BAD), detailed=True)
    assert (result["input_lens"], result["output_lens"]) == ([8], [2])
    assert (result["ttfts"], result["itls"], result["generated_texts"]) == ([0.5], [[0.5]], ["xy"])
    assert result["errors"][0].startswith("b: http_503: the queue is full")


def test_json_never_holds_nan() -> None:
    result = summary_json(summary(BAD), detailed=True)
    assert result["mean_ttft_ms"] is None
    assert result["p50_client_queue_time_ms"] is None
    json.dumps(result, allow_nan=False)
