"""One OpenTelemetry span per request, under the names of the gen_ai conventions and of vLLM. Needs the extra `otel`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace import Tracer as OpenTelemetryTracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from scheduler.request import SamplingParams, Timings
from server.observer import RequestObserver
from server.protocol.responses import Usage

logger = logging.getLogger(__name__)

Attribute = str | int | float | list[str]

_SECONDS_TO_SEND = 3
_OPERATIONS = {"/v1/completions": "text_completion"}


class Tracing:
    """Owns the exporter, which sends from a thread of its own. Where nobody takes the spans they are dropped.

    `endpoint`: a URL of OTLP over HTTP; without a path it is /v1/traces. `OTEL_*` variables set the rest, such as
    headers, sampling and the service's name. Raises ValueError for another kind of URL.
    """

    def __init__(self, endpoint: str, model: str, version: str) -> None:
        url = urlsplit(endpoint)
        if url.scheme not in ("http", "https") or not url.netloc:
            raise ValueError(
                f"--otlp-traces-endpoint {endpoint} must be a URL of OTLP over HTTP, such as "
                "http://127.0.0.1:4318/v1/traces"
            )
        if url.path in ("", "/"):
            endpoint = url._replace(path="/v1/traces").geturl()
        service = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "scissorserve"), "service.version": version}
        self._provider = TracerProvider(resource=Resource.create(service), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_SECONDS_TO_SEND)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("scissorserve", version)
        self._model = model

    def watch(
        self, request_id: str, path: str, headers: Mapping[str, str], params: SamplingParams, then: RequestObserver
    ) -> RequestObserver:
        """See `server.observer.Tracer`."""
        try:
            asked: dict[str, Attribute] = {
                "gen_ai.operation.name": _OPERATIONS.get(path, "chat"),
                "gen_ai.provider.name": "scissorserve",
                "gen_ai.request.model": self._model,
                "gen_ai.response.model": self._model,
                "gen_ai.request.id": request_id,
                "gen_ai.request.max_tokens": params.max_tokens,
                "gen_ai.request.temperature": params.temperature,
                "gen_ai.request.top_p": params.top_p,
                "gen_ai.request.top_k": params.top_k,
                "gen_ai.request.seed": params.seed,
                "gen_ai.request.frequency_penalty": params.frequency_penalty,
                "gen_ai.request.presence_penalty": params.presence_penalty,
                "http.route": path,
            }
            return _TracedRequest(self._tracer, TraceContextTextMapPropagator().extract(headers), asked, then)
        except Exception:
            logger.exception("no trace is made of a request")
            return then

    def close(self) -> None:
        """Send what is left, within seconds."""
        self._provider.force_flush(_SECONDS_TO_SEND * 1000)
        self._provider.shutdown()


class _TracedRequest:
    """Takes note of what happens and makes the span at the end, so that nothing of it can disturb the request."""

    def __init__(
        self, tracer: OpenTelemetryTracer, parent: Context, attributes: dict[str, Attribute], then: RequestObserver
    ) -> None:
        self._tracer = tracer
        self._parent = parent
        self._attributes = attributes
        self._then = then
        self._began = time.time_ns()
        self._num_choices = 0
        self._reasons: list[str] = []
        self._timings: Timings | None = None

    def request_began(self, num_prompt_tokens: int, num_choices: int, max_tokens: int) -> None:
        """See `server.observer.RequestObserver`."""
        self._then.request_began(num_prompt_tokens, num_choices, max_tokens)
        self._num_choices += num_choices

    def tokens_came(self, num_tokens: int, seconds: float, *, first: bool) -> None:
        """See `server.observer.RequestObserver`."""
        self._then.tokens_came(num_tokens, seconds, first=first)

    def choice_ended(self, reason: str, num_tokens: int, timings: Timings | None) -> None:
        """See `server.observer.RequestObserver`."""
        self._then.choice_ended(reason, num_tokens, timings)
        self._reasons.append(reason)
        self._timings = timings or self._timings

    def request_ended(self, usage: Usage) -> None:
        """See `server.observer.RequestObserver`."""
        self._then.request_ended(usage)
        try:
            self._tell(usage)
        except Exception:
            logger.exception("a trace could not be made")

    def _tell(self, usage: Usage) -> None:
        name = f"{self._attributes['gen_ai.operation.name']} {self._attributes['gen_ai.request.model']}"
        attributes = self._attributes | dict(_outcome(usage, self._timings))
        attributes["gen_ai.response.finish_reasons"] = self._reasons
        attributes["gen_ai.request.choice.count"] = attributes["gen_ai.request.n"] = self._num_choices
        failed = "error" in self._reasons
        if failed:
            attributes["error.type"] = "generation_failed"
        span = self._tracer.start_span(name, self._parent, SpanKind.SERVER, attributes, start_time=self._began)
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end()


def _outcome(usage: Usage, timings: Timings | None) -> Iterator[tuple[str, Attribute]]:
    """Tokens, cache rows, and seconds; those of the choice that ended last."""
    for name in ("input_tokens", "prompt_tokens"):
        yield f"gen_ai.usage.{name}", usage["prompt_tokens"]
    for name in ("output_tokens", "completion_tokens"):
        yield f"gen_ai.usage.{name}", usage["completion_tokens"]
    yield "scissorserve.kv.rows_kept", usage["kv_cache"]["rows_kept"]
    yield "scissorserve.kv.rows_evicted", usage["kv_cache"]["rows_evicted"]
    if timings is None:
        return
    moments = (timings.arrived, timings.first_scheduled, timings.first_token, timings.finished)
    for name, since, until in (
        ("time_in_queue", 0, 1),
        ("time_to_first_token", 0, 2),
        ("e2e", 0, 3),
        ("time_in_model_prefill", 1, 2),
        ("time_in_model_inference", 1, 3),
        ("time_in_model_decode", 2, 3),
    ):
        began, ended = moments[since], moments[until]
        if began is not None and ended is not None:
            yield f"gen_ai.latency.{name}", ended - began
