"""What Prometheus sees. vLLM's names where vLLM has them, so that its dashboards and gateways work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler.request import FinishReason, Timings
from scheduler.stats import EngineStats, StepStats
from server.protocol.responses import Usage

_SECONDS_TO_FIRST = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560
)  # fmt: skip
_SECONDS_BETWEEN = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80
)  # fmt: skip
_SECONDS_IN_ALL = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_SECONDS_LATE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)
_TOKENS_IN_STEP = (1, *(2**power for power in range(3, 15)))
_CHOICES = (1, 2, 5, 10, 20)


class Metrics:
    """Collects what happens in a registry of its own. A `RequestObserver` of all requests, and an `EngineObserver`.

    `cache_config` becomes the labels of `vllm:cache_config_info`, such as block_size and num_gpu_blocks.
    """

    def __init__(self, model_name: str, max_model_len: int, cache_config: Mapping[str, str] | None = None) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        lengths = _one_two_five(max_model_len)
        self._first_token = self._histogram("time_to_first_token_seconds", "To the first token.", _SECONDS_TO_FIRST)
        self._between_tokens = self._histogram("inter_token_latency_seconds", "Between tokens.", _SECONDS_BETWEEN)
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time per token after the first.", _SECONDS_BETWEEN
        )
        self._in_all = self._histogram("e2e_request_latency_seconds", "From arrival to the end.", _SECONDS_IN_ALL)
        self._in_queue = self._histogram("request_queue_time_seconds", "Waiting.", _SECONDS_IN_ALL)
        self._in_prefill = self._histogram("request_prefill_time_seconds", "Reading the prompt.", _SECONDS_IN_ALL)
        self._in_decode = self._histogram("request_decode_time_seconds", "After the first token.", _SECONDS_IN_ALL)
        self._running = self._histogram("request_inference_time_seconds", "Running.", _SECONDS_IN_ALL)
        self._prompt_length = self._histogram("request_prompt_tokens", "Tokens of prompts.", lengths)
        self._length = self._histogram("request_generation_tokens", "Tokens of choices.", lengths)
        self._max_tokens = self._histogram("request_params_max_tokens", "Tokens asked for.", lengths)
        self._num_choices = self._histogram("request_params_n", "Choices asked for.", _CHOICES)
        self._step_tokens = self._histogram("iteration_tokens_total", "Tokens computed in a step.", _TOKENS_IN_STEP)
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of accepted prompts.")
        self._tokens = self._counter("generation_tokens", "Tokens generated.")
        self._step_seconds = Counter(
            "scissorserve:step_seconds",
            "Where the time of steps went.",
            [*self._labels, "part"],
            registry=self._registry,
        )
        self._ended = Counter(
            "vllm:request_success",
            "Choices by how they ended.",
            [*self._labels, "finished_reason"],
            registry=self._registry,
        )
        for reason in get_args(FinishReason):  # so that the first failure is an increase, and not a new series
            self._ended.labels(**self._labels, finished_reason=reason)
        self._last_step = Gauge(
            "scissorserve:last_step_timestamp_seconds",
            "Unix time at which the last step ended; 0 before the first.",
            list(self._labels),
            registry=self._registry,
        ).labels(**self._labels)
        self._loop_lag = Histogram(
            "scissorserve:event_loop_lag_seconds",
            "How late the event loop comes to what is due.",
            list(self._labels),
            buckets=_SECONDS_LATE,
            registry=self._registry,
        ).labels(**self._labels)
        info = dict(cache_config or {}) | {"engine": "0"}
        Gauge("vllm:cache_config_info", "The KV cache.", list(info), registry=self._registry).labels(**info).set(1)

    def request_began(self, num_prompt_tokens: int, num_choices: int, max_tokens: int) -> None:
        """The engine took a request."""
        self._prompt_tokens.inc(num_prompt_tokens)
        self._prompt_length.observe(num_prompt_tokens)
        self._num_choices.observe(num_choices)
        self._max_tokens.observe(max_tokens)

    def tokens_came(self, num_tokens: int, seconds: float, *, first: bool) -> None:
        """Tokens of one choice, `seconds` after those before, or after the request if they are its first."""
        self._tokens.inc(num_tokens)
        if first:
            self._first_token.observe(seconds)
        else:
            for _ in range(num_tokens):
                self._between_tokens.observe(seconds / num_tokens)

    def choice_ended(self, reason: str, num_tokens: int, timings: Timings | None) -> None:
        """A choice is over. `timings` None: it was given up before the engine could tell."""
        self._ended.labels(**self._labels, finished_reason=reason).inc()
        self._length.observe(num_tokens)
        if timings is None:
            return
        self._in_all.observe(timings.finished - timings.arrived)
        if timings.first_scheduled is None:
            return
        self._in_queue.observe(timings.first_scheduled - timings.arrived)
        self._running.observe(timings.finished - timings.first_scheduled)
        if timings.first_token is None:
            return
        decoding = timings.finished - timings.first_token
        self._in_prefill.observe(timings.first_token - timings.first_scheduled)
        self._in_decode.observe(decoding)
        if num_tokens > 1:
            self._per_token.observe(decoding / (num_tokens - 1))

    def request_ended(self, usage: Usage) -> None:
        """See `server.observer.RequestObserver`. All that is counted was told before."""

    def step_done(self, step: StepStats) -> None:
        """See `scheduler.stats.EngineObserver`."""
        self._step_tokens.observe(step.num_tokens)
        self._last_step.set_to_current_time()
        for part, seconds in step.parts.items():
            self._step_seconds.labels(**self._labels, part=part).inc(seconds)

    def loop_lagged(self, seconds: float) -> None:
        """The event loop came `seconds` late to something; measured all the time."""
        self._loop_lag.observe(seconds)

    def exposition(self, stats: EngineStats, *, healthy: bool = True, ready: bool = True) -> bytes:
        """All metrics in Prometheus' text format, with the engine's own numbers as `stats` has them."""
        state = {
            "scissorserve:healthy": ("1 while requests make progress, else 0, as /health.", healthy),
            "scissorserve:ready": ("1 while requests are welcome, else 0, as /ready.", ready),
        }
        more = chain(_gauges(state, self._labels), _engine_metrics(stats, self._labels))
        return generate_latest(_Together(self._registry, more))

    def _histogram(self, name: str, help_text: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(f"vllm:{name}", help_text, list(self._labels), buckets=buckets, registry=self._registry)
        return family.labels(**self._labels)

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(f"vllm:{name}", help_text, list(self._labels), registry=self._registry).labels(**self._labels)


class _Together(Collector):
    def __init__(self, registry: CollectorRegistry, more: Iterator[Metric]) -> None:
        self._registry = registry
        self._more = more

    def collect(self) -> Iterator[Metric]:
        yield from self._registry.collect()
        yield from self._more


def _engine_metrics(stats: EngineStats, labels: Mapping[str, str]) -> Iterator[Metric]:
    names, values = list(labels), list(labels.values())
    gauges = {
        "vllm:num_requests_running": ("Sequences in the batch.", stats.num_running),
        "vllm:num_requests_waiting": ("Sequences that wait for room.", stats.num_waiting),
        "vllm:kv_cache_usage_perc": ("Share of KV pages in use, 0 to 1.", stats.kv_cache_usage),
        "scissorserve:kv_rows_kept": ("KV rows held by running sequences, over all lanes.", stats.rows_kept),
    }
    counters = {
        "vllm:num_preemptions": ("Sequences sent back to wait.", stats.preemptions_total),
        "scissorserve:preemptions": ("Sequences sent back to wait.", stats.preemptions_total),
        "scissorserve:kv_rows_evicted": ("KV rows evicted, over all lanes.", stats.rows_evicted_total),
        "scissorserve:kv_pages_freed": ("KV pages that eviction returned.", stats.pages_freed_total),
        "vllm:prefix_cache_queries": ("Tokens looked up in the prefix cache.", stats.prefix_tokens_asked_total),
        "vllm:prefix_cache_hits": ("Those whose rows were there.", stats.prefix_tokens_found_total),
    }
    yield from _gauges(gauges, labels)
    pages = GaugeMetricFamily("scissorserve:kv_pages", "KV pages by use.", labels=[*names, "use"])
    pages.add_metric([*values, "held"], stats.pages_total - stats.pages_free)
    pages.add_metric([*values, "cached"], stats.pages_cached)
    pages.add_metric([*values, "free"], stats.pages_free - stats.pages_cached)
    yield pages
    for name, (help_text, value) in counters.items():
        counter = CounterMetricFamily(name, help_text, labels=names)
        counter.add_metric(values, value)
        yield counter
    compressions = CounterMetricFamily(
        "scissorserve:kv_compressions", "Sequences compressed, by reason.", labels=[*names, "reason"]
    )
    for reason, total in stats.compressions_total.items():
        compressions.add_metric([*values, reason], total)
    yield compressions


def _gauges(gauges: Mapping[str, tuple[str, float]], labels: Mapping[str, str]) -> Iterator[Metric]:
    for name, (help_text, value) in gauges.items():
        gauge = GaugeMetricFamily(name, help_text, labels=list(labels))
        gauge.add_metric(list(labels.values()), value)
        yield gauge


def _one_two_five(limit: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... up to `limit`."""
    steps = (digit * 10**power for power in range(len(str(limit))) for digit in (1, 2, 5))
    return [float(step) for step in steps if step <= limit]
