"""Spans as a collector gets them, and requests that do not care whether one is there."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from server.app import create_app
from server.cli import parse
from server.command import tracer_for
from server.launch_error import LaunchError
from server.settings import ServerSettings
from server.tracing import Tracing
from tests.server.stack import CHAT_HI, CHAT_HI_TEXT, Model, Stack

StackFactory = Callable[..., Stack]

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes spans over HTTP as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                owner.take(self.path, body if self.headers["content-encoding"] is None else b"")
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, body: bytes) -> None:
        self.paths.append(path)
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes(of_resource.resource))
            self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def attributes(holder: Any) -> dict[str, Any]:
    """Attributes of a span or a resource as plain values."""
    return {pair.key: plain(pair.value) for pair in holder.attributes}


def plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [plain(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind or "")


@pytest.fixture
def collector() -> Iterator[Collector]:
    started = Collector()
    yield started
    started.close()


def traced(server: Stack, endpoint: str) -> tuple[Stack, Tracing]:
    """`server` with traces to `endpoint`."""
    services, tracing = server.services, Tracing(endpoint, "tiny", "1.2")
    app = create_app(server.engine, services.tokenizer, services.settings, services.metrics, tracing)
    return Stack(server.model, server.engine, app), tracing


def spans_of(collector: Collector, server: Stack, *bodies: tuple[str, dict[str, Any]]) -> list[Any]:
    """The spans of these requests, in the order of the requests."""
    running, tracing = traced(server, collector.url)

    async def ask(client: httpx.AsyncClient) -> None:
        headers = {"x-request-id": "mine", "traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
        for path, body in bodies:
            await client.post(path, json=body, headers=headers)

    running.run(ask)
    tracing.close()
    return collector.spans


def test_a_request_becomes_a_span_of_its_callers_trace(collector: Collector, stack: StackFactory, model: Model) -> None:
    body = {"messages": CHAT_HI, "max_tokens": 20, "temperature": 0.5, "top_p": 0.9, "seed": 7, "n": 2}
    (span,) = spans_of(collector, stack(model.says("xyzzy", to=CHAT_HI_TEXT)), ("/v1/chat/completions", body))
    assert (span.name, span.kind) == ("chat tiny", 2)  # of a server
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9
    assert span.status.code == 0
    found = attributes(span)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.id": "mine",
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.choice.count": 2,
        "gen_ai.usage.output_tokens": 12,
        "gen_ai.usage.completion_tokens": 12,
        "gen_ai.response.finish_reasons": ["stop", "stop"],
        "http.route": "/v1/chat/completions",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found["gen_ai.usage.input_tokens"] == found["gen_ai.usage.prompt_tokens"] > 0
    latency = {name.removeprefix("gen_ai.latency."): value for name, value in found.items() if "latency" in name}
    assert latency["e2e"] == pytest.approx(latency["time_in_queue"] + latency["time_in_model_inference"])
    assert latency["time_to_first_token"] == pytest.approx(latency["time_in_queue"] + latency["time_in_model_prefill"])
    assert "xyzzy" not in str(found), "no text is told"
    assert collector.paths == ["/v1/traces"]
    assert collector.resources[0].items() >= {"service.name": "scissorserve", "service.version": "1.2"}.items()


def test_streams_failures_and_the_other_routes(collector: Collector, stack: StackFactory, model: Model) -> None:
    model.says("abcdef", to="bad").failing.add("bad")
    spans = spans_of(
        collector,
        stack(model.says("ab")),
        ("/v1/completions", {"prompt": ["hi", "hi"], "stream": True}),
        ("/v1/completions", {"prompt": "bad"}),
        ("/v1/completions", {"prompt": "hi", "max_tokens": -1}),
    )
    whole, failed = spans  # what never reached the engine has no span
    assert whole.name == "text_completion tiny"
    assert attributes(whole)["gen_ai.response.finish_reasons"] == ["stop", "stop"]
    assert failed.status.code == 2
    assert attributes(failed)["error.type"] == "generation_failed"


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.HTTPWarning")
def test_nobody_who_takes_the_spans_is_nobodys_trouble(stack: StackFactory, model: Model) -> None:
    running, tracing = traced(stack(model.says("ab")), "http://127.0.0.1:9/v1/traces")
    assert running.post("/v1/completions", prompt="hi").status_code == 200
    tracing.close()


def test_a_tracer_that_fails_does_not_fail_the_request(
    stack: StackFactory, model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such thing")

    running, tracing = traced(stack(model.says("ab")), "http://127.0.0.1:9")
    monkeypatch.setattr(tracing._tracer, "start_span", broken)
    assert running.post("/v1/completions", prompt="hi").json()["choices"][0]["text"] == "ab"
    assert "a trace could not be made" in caplog.text
    tracing.close()


@pytest.mark.parametrize("url", ["grpc://127.0.0.1:4317", "127.0.0.1:4318", "http://"])
def test_another_kind_of_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be a URL of OTLP over HTTP"):
        Tracing(url, "tiny", "1")


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "server.tracing")
    options = parse(["--otlp-traces-endpoint", "http://127.0.0.1:4318"], {})
    with pytest.raises(LaunchError, match=r"pip install 'scissorserve\[otel\]'"):
        tracer_for(options, ServerSettings(("tiny",)))


def test_without_the_flag_there_are_no_traces() -> None:
    assert tracer_for(parse([], {}), ServerSettings(("tiny",))) is None
