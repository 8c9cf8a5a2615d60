"""The summary as a person and as a program reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from textwrap import fill, shorten
from typing import Any

from client.metrics import LATE_SEND_S, Summary

LABELS = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "itl": "Inter-token latency (ITL)",
    "e2el": "End-to-end latency (E2EL)",
    "client_queue_time": "Waiting in the client",
}
LABEL_WIDTH = 34
NUMBER_WIDTH = 11
MIN_WIDTH = 78
LAG_LIMIT_S = 0.02


def render_table(summary: Summary, facts: Mapping[str, str]) -> str:
    """A table of one screen. `facts` (label to value) come first."""
    latencies = _latency_rows(summary)
    width = max(MIN_WIDTH, len(latencies[0]))
    lines = [
        " Serving benchmark result ".center(width, "="),
        *(f"{label + ':':<{LABEL_WIDTH}}{value}" for label, value in facts.items()),
        "-" * width,
        *(f"{label + ':':<{LABEL_WIDTH}}{value:>{NUMBER_WIDTH}}" for label, value in _totals(summary)),
    ]
    if summary.completed:
        lines += [" Latency (ms) ".center(width, "-"), *latencies]
    if summary.failures:
        lines.append(" Failures ".center(width, "-"))
        lines += [shorten(f"{group.count:>6} {group.kind}: {group.example}", width) for group in summary.failures]
    if found := notes(summary):
        lines.append(" Notes ".center(width, "-"))
        lines += [fill(note, width, initial_indent="- ", subsequent_indent="  ") for note in found]
    return "\n".join([*lines, "=" * width])


def notes(summary: Summary) -> list[str]:
    """What a reader must know before trusting the numbers, one sentence each."""
    found = []
    finished = summary.completed + summary.failed
    answers, requests = f"{summary.completed} answers", f"{finished} requests"
    if summary.interrupted:
        found.append(f"Interrupted: {finished} of {summary.planned} requests had finished; the rest is not counted.")
    sources = [one.timeline.counted_by for one in summary.measured]
    if by_events := sources.count("events"):
        found.append(
            f"{by_events} of {answers} had no usage: each event counts as one token (--tokenizer counts exactly)."
        )
    if by_tokenizer := sources.count("tokenizer"):
        found.append(f"{by_tokenizer} of {answers} had no usage: their text was counted with the tokenizer.")
    if hiding := sum(one.timeline.hides for one in summary.measured):
        found.append(
            f"{hiding} of {answers} counted tokens before the first text: TTFT and TPOT are upper bounds. "
            "If the server can count in every event, ask it to: --extra-body stream_options.continuous_usage_stats."
        )
    if summary.late_sends:
        found.append(
            f"{summary.late_sends} of {requests} were sent more than {LATE_SEND_S * 1000:g} ms after they were "
            f"due (worst {summary.max_late_send * 1000:.0f} ms); latencies include that wait."
        )
    if summary.loop_lag_p99 > LAG_LIMIT_S:
        found.append(
            f"INVALID: the client itself was late (p99 {summary.loop_lag_p99 * 1000:.0f} ms): "
            "lower the load or give the client a free core."
        )
    return found


def result_json(summary: Summary, facts: Mapping[str, Any], *, detailed: bool) -> dict[str, Any]:
    """The result under the keys of `vllm bench serve`, headed by `facts`; a metric without samples is null.

    `detailed` adds lists with an entry per successful request (latencies in seconds, lengths in tokens, texts) and
    `errors` with one per failed request.
    """
    result: dict[str, Any] = {
        **facts,
        "duration": summary.duration,
        "completed": summary.completed,
        "failed": summary.failed,
        "total_input_tokens": summary.total_input_tokens,
        "total_output_tokens": summary.total_output_tokens,
        "request_throughput": summary.per_second(summary.completed),
        "output_throughput": summary.per_second(summary.total_output_tokens),
        "total_token_throughput": summary.per_second(summary.total_input_tokens + summary.total_output_tokens),
        "max_output_tokens_per_s": summary.max_output_tokens_per_s,
        "max_concurrent_requests": summary.max_concurrent_requests,
    }
    for metric, distribution in summary.distributions.items():
        for name, value in distribution.named().items():
            result[f"{name}_{metric}_ms"] = None if math.isnan(value) else value
    result |= {
        "interrupted": summary.interrupted,
        "failures": {group.kind: {"count": group.count, "example": group.example} for group in summary.failures},
        "late_sends": summary.late_sends,
        "max_late_send_ms": summary.max_late_send * 1000,
        "client_loop_lag_p99_ms": summary.loop_lag_p99 * 1000,
        "notes": notes(summary),
    }
    return result | _details(summary) if detailed else result


def _totals(summary: Summary) -> list[tuple[str, str]]:
    tokens_in, tokens_out = summary.total_input_tokens, summary.total_output_tokens
    return [
        ("Successful requests", f"{summary.completed}"),
        ("Failed requests", f"{summary.failed}"),
        ("Benchmark duration (s)", f"{summary.duration:.2f}"),
        ("Total input tokens", f"{tokens_in}"),
        ("Total generated tokens", f"{tokens_out}"),
        ("Request throughput (req/s)", f"{summary.per_second(summary.completed):.2f}"),
        ("Output token throughput (tok/s)", f"{summary.per_second(tokens_out):.2f}"),
        ("Peak output throughput (tok/s)", f"{summary.max_output_tokens_per_s:.2f}"),
        ("Total token throughput (tok/s)", f"{summary.per_second(tokens_in + tokens_out):.2f}"),
        ("Peak concurrent requests", f"{summary.max_concurrent_requests}"),
    ]


def _latency_rows(summary: Summary) -> list[str]:
    heads = list(next(iter(summary.distributions.values())).named())
    rows = [" " * LABEL_WIDTH + "".join(f"{head:>{NUMBER_WIDTH}}" for head in heads)]
    for metric, distribution in summary.distributions.items():
        numbers = ("-" if math.isnan(value) else f"{value:.2f}" for value in distribution.named().values())
        rows.append(f"{LABELS[metric]:<{LABEL_WIDTH}}" + "".join(f"{number:>{NUMBER_WIDTH}}" for number in numbers))
    return rows


def _details(summary: Summary) -> dict[str, list[Any]]:
    measured = summary.measured
    return {
        "request_ids": [one.record.request_id for one in measured],
        "input_lens": [one.record.input_tokens for one in measured],
        "output_lens": [len(one.timeline.times) for one in measured],
        "ttfts": [one.ttft for one in measured],
        "itls": [one.itl.tolist() for one in measured],
        "start_times": [one.record.sent for one in measured],
        "generated_texts": [one.record.text for one in measured],
        "errors": [f"{record.request_id}: {record.failure}" for record in summary.failed_requests],
    }
