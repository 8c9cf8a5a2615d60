"""What Prometheus sees."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler.request import Timings
from scheduler.stats import EngineStats, StepStats
from server.metrics import Metrics
from tests.server.stack import Model, Stack

StackFactory = Callable[..., Stack]

NAMES = {
    "process_cpu_seconds",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
    "vllm:cache_config_info",
    "vllm:e2e_request_latency_seconds",
    "vllm:generation_tokens",
    "vllm:inter_token_latency_seconds",
    "vllm:iteration_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prompt_tokens",
    "vllm:request_decode_time_seconds",
    "vllm:request_generation_tokens",
    "vllm:request_inference_time_seconds",
    "vllm:request_params_max_tokens",
    "vllm:request_params_n",
    "vllm:request_prefill_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_queue_time_seconds",
    "vllm:request_success",
    "vllm:request_time_per_output_token_seconds",
    "vllm:time_to_first_token_seconds",
    "scissorserve:healthy",
    "scissorserve:kv_compressions",
    "scissorserve:kv_pages",
    "scissorserve:kv_pages_freed",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "scissorserve:kv_rows_evicted",
    "scissorserve:kv_rows_kept",
    "scissorserve:last_step_timestamp_seconds",
    "scissorserve:preemptions",
    "scissorserve:event_loop_lag_seconds",
    "scissorserve:ready",
    "scissorserve:step_seconds",
}

STATS = EngineStats(
    num_running=3,
    num_waiting=2,
    pages_total=100,
    pages_free=75,
    rows_kept=40,
    rows_evicted_total=7,
    pages_freed_total=5,
    preemptions_total=4,
    compressions_total={"pressure": 6},
)


def samples(exposition: str) -> dict[str, float]:
    """Every sample, named with those of its labels that tell samples apart."""
    found = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k in ("finished_reason", "reason", "use", "le")}
            found[sample.name + "".join(f",{value}" for value in labels.values())] = sample.value
    return found


def test_every_family_is_there_from_the_start() -> None:
    exposition = Metrics("m", 100, {"block_size": "16"}).exposition(STATS).decode()
    families = list(text_string_to_metric_families(exposition))
    assert {family.name for family in families if not family.name.endswith("_created")} == NAMES
    for family in families:
        if family.name.startswith("process_"):
            continue
        for sample in family.samples:
            assert sample.labels["engine"] == "0"
            assert sample.labels.get("model_name", "m") == "m"
    assert 'vllm:cache_config_info{block_size="16",engine="0"} 1.0' in exposition


def test_the_engines_numbers() -> None:
    found = samples(Metrics("m", 100).exposition(STATS).decode())
    assert found["vllm:num_requests_running"] == 3
    assert found["vllm:num_requests_waiting"] == 2
    assert found["vllm:kv_cache_usage_perc"] == 0.25
    assert found["vllm:num_preemptions_total"] == found["scissorserve:preemptions_total"] == 4
    assert (found["scissorserve:kv_pages,held"], found["scissorserve:kv_pages,free"]) == (25, 75)
    assert found["scissorserve:kv_rows_evicted_total"] == 7
    assert found["scissorserve:kv_pages_freed_total"] == 5
    assert found["scissorserve:kv_rows_kept"] == 40
    assert found["scissorserve:kv_compressions_total,pressure"] == 6


def test_ends_that_have_not_come_yet_count_nothing() -> None:
    found = samples(Metrics("m", 100).exposition(STATS).decode())
    assert {name for name in found if name.startswith("vllm:request_success_total")} == {
        f"vllm:request_success_total,{reason}" for reason in ("stop", "length", "abort", "error")
    }
    assert found["scissorserve:last_step_timestamp_seconds"] == 0


def test_the_servers_state(stack: StackFactory) -> None:
    async def state(client: httpx.AsyncClient) -> tuple[float, float]:
        found = samples((await client.get("/metrics")).text)
        return found["scissorserve:healthy"], found["scissorserve:ready"]

    assert stack().run(state) == (1, 1)
    draining = stack()
    draining.services.lifecycle.begin_drain()
    assert draining.run(state) == (0, 0)


def test_what_is_counted() -> None:
    metrics = Metrics("m", 1000)
    metrics.request_began(30, 2, 16)
    metrics.tokens_came(1, 0.5, first=True)
    metrics.tokens_came(4, 0.2, first=False)
    metrics.choice_ended("length", 5, Timings(10.0, 11.0, 13.0, 21.0))
    metrics.choice_ended("abort", 0, None)
    metrics.choice_ended("error", 0, Timings(10.0, None, None, 12.0))
    metrics.choice_ended("error", 0, Timings(10.0, 11.0, None, 12.0))
    metrics.step_done(StepStats(num_tokens=33, num_prompt_tokens=30, num_sequences=2, seconds=0.1))
    found = samples(metrics.exposition(STATS).decode())
    expected = {
        "vllm:prompt_tokens_total": 30,
        "vllm:generation_tokens_total": 5,
        "vllm:request_prompt_tokens_sum": 30,
        "vllm:request_params_n_sum": 2,
        "vllm:request_params_max_tokens_sum": 16,
        "vllm:time_to_first_token_seconds_sum": 0.5,
        "vllm:inter_token_latency_seconds_count": 4,
        "vllm:inter_token_latency_seconds_sum": 0.2,
        "vllm:request_success_total,length": 1,
        "vllm:request_success_total,abort": 1,
        "vllm:request_success_total,error": 2,
        "vllm:e2e_request_latency_seconds_sum": 11 + 2 + 2,
        "vllm:request_queue_time_seconds_sum": 1 + 1,
        "vllm:request_inference_time_seconds_sum": 10 + 1,
        "vllm:request_prefill_time_seconds_sum": 2,
        "vllm:request_decode_time_seconds_sum": 8,
        "vllm:request_time_per_output_token_seconds_sum": 2,
        "vllm:request_generation_tokens_count": 4,
        "vllm:iteration_tokens_total_sum": 33,
        "scissorserve:last_step_timestamp_seconds": time.time(),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_requests_move_the_numbers(stack: StackFactory, model: Model) -> None:
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        for body in ({"n": 2}, {"stop": "c"}, {"max_tokens": 1}, {"stream": True}):
            assert (await client.post("/v1/completions", json={"prompt": "hi", **body})).status_code == 200
        return await client.get("/metrics")

    response = stack(model.says("abcd")).run(ask)
    assert response.headers["content-type"].startswith("text/plain")
    found = samples(response.text)
    assert found["vllm:request_success_total,stop"] == 4
    assert found["vllm:request_success_total,length"] == 1
    assert found["vllm:prompt_tokens_total"] == 4
    assert found["vllm:request_generation_tokens_sum"] == 5 + 5 + 3 + 1 + 5
    assert found["vllm:time_to_first_token_seconds_count"] == 5
    assert found["vllm:iteration_tokens_total_count"] > 0
    assert found["vllm:num_requests_running"] == 0
