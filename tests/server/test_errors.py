"""One shape for everything that goes wrong, and nothing in it that is nobody's business."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from scheduler.errors import EngineDead, EngineDraining, EngineError, QueueFull, RequestRejected
from server.errors import as_api_error
from tests.server.stack import CHAT_HI, CHAT_HI_TEXT, Json, Model, Stack, sse

StackFactory = Callable[..., Stack]
SECRETS = re.compile(r"0x[0-9a-f]{6,}|/home|/usr|/root|site-packages|Traceback|<class|object at|kernel")


def shape(response: httpx.Response) -> Json:
    """The error object, which has all its keys and betrays nothing."""
    assert response.headers["content-type"] == "application/json"
    assert not SECRETS.search(response.text)
    error: Json = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["code"] is None or isinstance(error["code"], str)
    return error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/", 404),
        ("GET", "/docs", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/completions/", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("PUT", "/v1/chat/completions", 405),
    ],
)
def test_paths_and_methods_that_are_not_there(stack: StackFactory, method: str, path: str, status: int) -> None:
    response = stack().run(lambda client: client.request(method, path))
    assert response.status_code == status
    error = shape(response)
    assert error["type"] == "invalid_request_error"
    if status == 405:
        assert response.headers["allow"] in error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_a_model_that_is_not_served(stack: StackFactory, path: str) -> None:
    body = {"prompt": "hi", "tokens": [1]} | ({"messages": CHAT_HI} if "chat" in path else {})
    response = stack().post(path, **body, model="gpt-\n\x1b[31m" + "x" * 1000)
    error = shape(response)
    assert (response.status_code, error["param"], error["code"]) == (404, "model", "model_not_found")
    assert "tiny, org/alias" in error["message"]
    assert len(error["message"]) < 300


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (RequestRejected("too much", param="kv_budget", code="x"), 400, "x", None),
        (QueueFull("8 wait"), 503, "queue_full", "1"),
        (EngineDraining("soon gone"), 503, "shutting_down", "5"),
        (EngineDead("gone"), 503, "engine_dead", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_the_engine_refuses(
    stack: StackFactory,
    monkeypatch: pytest.MonkeyPatch,
    error: EngineError,
    status: int,
    code: str,
    retry: str | None,
    stream: bool,
    path: str,
) -> None:
    server = stack()

    def refuse(_: object) -> None:
        raise error

    monkeypatch.setattr(server.engine, "submit", refuse)
    response = server.post(path, prompt="hi", messages=CHAT_HI, stream=stream)
    assert response.status_code == status
    shown = shape(response)
    assert (shown["message"], shown["code"]) == (str(error), code)
    assert response.headers.get("retry-after") == retry


def test_every_engine_error_has_a_row_in_the_table() -> None:
    assert all(as_api_error(kind("why")) is not None for kind in EngineError.__subclasses__())
    assert as_api_error(ZeroDivisionError()) is None


def test_the_queue_is_full(stack: StackFactory) -> None:
    response = stack(engine={"max_num_queued": 2}).post("/v1/completions", prompt=["hi", "ho"], n=2)
    assert (response.status_code, shape(response)["code"]) == (503, "queue_full")


@pytest.mark.parametrize("stream", [False, True])
def test_if_one_prompt_is_refused_none_stays(stack: StackFactory, stream: bool) -> None:
    server = stack(engine={"max_num_queued": 3})

    async def ask(client: httpx.AsyncClient) -> tuple[httpx.Response, int]:
        response = await client.post("/v1/completions", json={"prompt": ["a", "b", "c"], "n": 2, "stream": stream})
        stats = server.engine.stats()
        return response, stats.num_running + stats.num_waiting

    response, left = server.run(ask)
    assert (response.status_code, left) == (503, 0)
    assert server.model.num_steps == 0


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_failure_in_the_engine_is_told_without_details(stack: StackFactory, model: Model, path: str) -> None:
    for text in ("hi", CHAT_HI_TEXT):
        model.says("some words", to=text).failing.add(text)
    response = stack(model).post(path, prompt="hi", messages=CHAT_HI)
    assert response.status_code == 500
    assert shape(response)["type"] == "server_error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_step_is_logged_under_the_id_that_the_client_saw(
    stack: StackFactory, model: Model, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    server = stack(model.says("some words"))
    model.failing.add("hi")
    body = {"prompt": "hi", "stream": stream}

    async def ask(client: httpx.AsyncClient) -> str:
        sent = await client.post("/v1/completions", json=body, headers={"x-request-id": "order-7"})
        made = await client.post("/v1/completions", json=body)
        for response, name in ((sent, "order-7"), (made, made.headers["x-request-id"])):
            error = sse(response.text)[-1]["error"] if stream else shape(response)
            assert name in error["message"]
        return str(made.headers["x-request-id"])

    name = server.run(ask)
    logged = [record.getMessage() for record in caplog.records if record.name == "scheduler.engine"]
    assert logged == [f"a step failed, which ends request(s) {each}" for each in ("order-7", name)]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_failure_in_the_middle_of_a_stream(stack: StackFactory, model: Model, path: str) -> None:
    for text in ("hi", CHAT_HI_TEXT):
        model.says("some words", to=text).failing.add(text)
    response = stack(model).post(path, prompt="hi", messages=CHAT_HI, stream=True, n=2)
    *before, last = sse(response.text)
    assert response.status_code == 200
    assert before
    assert all(choice["finish_reason"] is None for event in before for choice in event["choices"])
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert not SECRETS.search(response.text)


def test_after_a_failure_others_are_served(stack: StackFactory, model: Model) -> None:
    model.says("some words", to="bad").failing.add("bad")

    async def ask(client: httpx.AsyncClient) -> list[int]:
        return [(await client.post("/v1/completions", json={"prompt": text})).status_code for text in ("bad", "hi")]

    assert stack(model).run(ask) == [500, 200]


@pytest.mark.parametrize("stream", [False, True])
def test_what_nobody_foresaw_is_in_the_log_only(
    stack: StackFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    server = stack()

    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("/home/secret at 0xabcdef12")

    broken: Mapping[bool, tuple[Any, str]] = {
        False: (server.services.prompts, "completion"),
        True: (server.services.metrics, "tokens_came"),
    }
    monkeypatch.setattr(*broken[stream], explode)
    headers = {"x-request-id": "my-id"}
    body = {"prompt": "hi", "stream": stream}
    response = server.run(lambda client: client.post("/v1/completions", json=body, headers=headers))
    error = sse(response.text)[-1]["error"] if stream else shape(response)
    assert response.status_code == (200 if stream else 500)
    assert not SECRETS.search(response.text)
    assert "my-id" in error["message"]
    assert response.headers["x-request-id"] == "my-id"
    assert "my-id" in caplog.text
    assert "ZeroDivisionError: /home/secret" in caplog.text


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        ("abc-123", True),
        ("x" * 128, True),
        ("~!@#$%^&*()", True),
        ("x" * 129, False),
        ("with space", False),
        ("ümlaut", False),
        ("a%0d%0aSet-Cookie: x", False),
        ("", False),
        (None, False),
    ],
)
def test_request_ids(stack: StackFactory, sent: str | None, echoed: bool) -> None:
    headers = {} if sent is None else {"x-request-id": sent.encode("latin-1")}
    response = stack().run(lambda client: client.get("/v1/models", headers=headers))  # type: ignore[arg-type]
    returned = response.headers["x-request-id"]
    assert (returned == sent) is echoed
    assert re.fullmatch(r"[!-~]{1,128}", returned)


def test_two_requests_with_one_id_do_not_meet(stack: StackFactory) -> None:
    async def ask(client: httpx.AsyncClient) -> set[str]:
        headers = {"x-request-id": "same"}
        answers = [await client.post("/v1/completions", json={"prompt": "hi"}, headers=headers) for _ in range(2)]
        assert all(answer.status_code == 200 for answer in answers)
        return {answer.json()["id"] for answer in answers}

    assert len(stack().run(ask)) == 2
