"""The result for programs: the keys of `vllm bench serve`, and ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from client.experiment import Run
from client.notes import notes
from client.options import Options
from client.scrape import COUNTERS, Series
from client.summary import Summary


def result_json(runs: Sequence[Run], options: Options) -> dict[str, Any]:
    """The numbers of the run; of a sweep or a comparison `runs`, a list of the same, with `target` and `level`."""
    detailed = options.report.save_detailed
    results = [
        run_facts(run, options) | summary_json(run.summary, detailed=detailed) | {"server_metrics": _server(run.server)}
        for run in runs
    ]
    several = options.load.sweep is not None or bool(options.server.target)
    return {"label": options.report.label, "runs": results} if several else results[0]


def run_facts(run: Run, options: Options) -> dict[str, Any]:
    """What was asked of whom, by the names of the flags."""
    rate = getattr(run.level.arrival, "request_rate", math.inf)
    dataset = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options.dataset).items()}
    return {
        "date": run.date.strftime("%Y%m%d-%H%M%S"),
        "backend": options.server.backend,
        "endpoint_type": options.server.backend,
        "label": options.report.label,
        "model_id": run.target.model,
        "tokenizer_id": str(options.requests.tokenizer) if options.requests.tokenizer else None,
        "url": run.target.url(options.server.path),
        "target": run.target.name or None,
        "extra_body": options.requests.extra_body | run.target.extra_body,
        "level": run.level.describe(),
        "dataset_name": options.requests.dataset_name,
        "dataset": dataset,
        "seed": options.requests.seed,
        "num_prompts": options.requests.num_prompts,
        "request_rate": rate if math.isfinite(rate) else "inf",
        "burstiness": getattr(run.level.arrival, "burstiness", 1.0),
        "max_concurrency": run.level.concurrency,
        **dict(options.report.metadata),
    }


def summary_json(summary: Summary, *, detailed: bool) -> dict[str, Any]:
    """The numbers; a metric without samples is null.

    `detailed` adds lists with an entry per successful request (latencies in seconds, lengths in tokens, texts) and
    `errors` with one per failed request.
    """
    result: dict[str, Any] = {
        "duration": summary.duration,
        "completed": summary.completed,
        "failed": summary.failed,
        "total_input_tokens": summary.total_input_tokens,
        "total_output_tokens": summary.total_output_tokens,
        "request_throughput": summary.request_throughput,
        "request_goodput": None if summary.good is None else summary.per_second(summary.good),
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.per_second(summary.total_input_tokens + summary.total_output_tokens),
        "max_output_tokens_per_s": summary.max_output_tokens_per_s,
        "max_concurrent_requests": summary.max_concurrent_requests,
    }
    for metric, distribution in summary.distributions.items():
        for name, value in distribution.named().items():
            result[f"{name}_{metric}_ms"] = None if math.isnan(value) else value
    result |= {
        "goodput_objectives_ms": dict(summary.objectives),
        "answers_checked": summary.answers_checked,
        "answers_right": summary.answers_right,
        "planned": summary.planned,
        "unsent": summary.unsent,
        "interrupted": summary.interrupted,
        "failures": {group.kind: {"count": group.count, "example": group.example} for group in summary.failures},
        "late_sends": summary.late_sends,
        "max_late_send_ms": summary.max_late_send * 1000,
        "client_loop_lag_p50_ms": summary.client.lag_p50 * 1000,
        "client_loop_lag_p99_ms": summary.client.lag_p99 * 1000,
        "client_cpu_share": summary.client.cpu_share,
        "notes": notes(summary),
    }
    return result | _details(summary) if detailed else result


def _details(summary: Summary) -> dict[str, list[Any]]:
    measured = summary.measured
    return {
        "request_ids": [one.record.request_id for one in measured],
        "input_lens": [one.record.input_tokens for one in measured],
        "output_lens": [len(one.timeline.times) for one in measured],
        "ttfts": [one.ttft for one in measured],
        "latencies": [one.e2el for one in measured],
        "queue_times": [one.client_queue_time for one in measured],
        "itls": [one.itl.tolist() for one in measured],
        "start_times": [one.record.sent for one in measured],
        "generated_texts": [one.record.text for one in measured],
        "errors": [f"{record.request_id}: {record.failure}" for record in summary.failed_requests],
    }


def _server(server: Mapping[str, Series]) -> dict[str, float]:
    """How much a counter rose; the mean and the maximum of what is no counter."""
    found: dict[str, float] = {}
    for name, series in server.items():
        if name in COUNTERS:
            found[name] = series.values[-1]
        else:
            found[f"{name}_max"] = max(series.values)
            found[f"{name}_mean"] = sum(series.values) / len(series.values)
    return found
