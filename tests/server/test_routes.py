"""The small endpoints."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from pydantic import TypeAdapter

from models.tokenizer import Tokenizer
from server.protocol.responses import ChatChunk, ChatCompletion, Completion
from tests.server.stack import TEMPLATE, Json, Model, Stack, succeeded

StackFactory = Callable[..., Stack]


def get(stack: Stack, path: str) -> httpx.Response:
    """The answer to GET."""
    return stack.run(lambda client: client.get(path))


def test_models(stack: StackFactory) -> None:
    listed = succeeded(get(stack(created=7), "/v1/models"))
    assert listed["object"] == "list"
    assert [entry["id"] for entry in listed["data"]] == ["tiny", "org/alias"]
    assert listed["data"][0] == {
        "id": "tiny",
        "object": "model",
        "created": 7,
        "owned_by": "scissorserve",
        "root": "tiny",
        "parent": None,
        "max_model_len": 200,
    }


@pytest.mark.parametrize("name", ["tiny", "org/alias", "org%2Falias"])
def test_one_model(stack: StackFactory, name: str) -> None:
    assert succeeded(get(stack(), f"/v1/models/{name}"))["id"] == name.replace("%2F", "/")


@pytest.mark.parametrize("name", ["other", "org", "tiny/", "../etc"])
def test_no_such_model(stack: StackFactory, name: str) -> None:
    response = get(stack(), f"/v1/models/{name}")
    assert response.status_code == 404
    assert "error" in response.json()


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_health(stack: StackFactory, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    assert (get(stack(), path).status_code, get(stack(), path).content) == (200, b"")
    assert stack().run(lambda client: client.head(path)).status_code == 200
    stuck = stack()
    monkeypatch.setattr(stuck.engine, "unhealthy_reason", lambda: "a step takes too long")
    response = get(stuck, path)
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "a step takes too long"


def test_health_notices_a_dead_engine(stack: StackFactory, model: Model) -> None:
    model.says("some words").failing.add("hi")

    async def ask(client: httpx.AsyncClient) -> list[int]:
        answers = [await client.post("/v1/completions", json={"prompt": "hi"}) for _ in range(4)]
        return [*(answer.status_code for answer in answers), (await client.get("/health")).status_code]

    server = stack(model)

    def broken(_: object) -> None:
        raise RuntimeError("no device")

    server.model.execute = broken  # type: ignore[method-assign, assignment]
    assert server.run(ask) == [500, 500, 500, 503, 503]


def test_version_and_load(stack: StackFactory) -> None:
    assert succeeded(get(stack(version="1.2"), "/version")) == {"version": "1.2"}
    assert succeeded(get(stack(), "/load")) == {"server_load": 0}


def test_tokenize_a_text(stack: StackFactory, tokenizer: Tokenizer) -> None:
    answer = succeeded(stack().post("/tokenize", prompt="abcd 😀", return_token_strs=True))
    assert answer["tokens"] == tokenizer.encode("abcd 😀")
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 200
    assert answer["token_strs"] == [tokenizer.token_string(token) for token in answer["tokens"]]
    assert succeeded(stack().post("/detokenize", tokens=answer["tokens"])) == {"prompt": "abcd 😀"}


def test_tokenize_what_is_longer_than_the_context(stack: StackFactory) -> None:
    assert succeeded(stack().post("/tokenize", prompt="x" * 1000))["count"] == 1000


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}, None),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {"tokens": [1, "2"]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [262]}, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, "tokens[0]"),
    ],
)
def test_mistakes(stack: StackFactory, path: str, body: Json, param: str | None) -> None:
    response = stack().post(path, **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_no_ids_are_no_text(stack: StackFactory) -> None:
    assert succeeded(stack().post("/detokenize", tokens=[])) == {"prompt": ""}


def test_the_schema_names_every_parameter_and_answer(stack: StackFactory) -> None:
    schema = succeeded(get(stack(), "/openapi.json"))
    operation = schema["paths"]["/v1/completions"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    properties = schema["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]["properties"]
    assert {"prompt", "stop", "kv_budget", "kv_policy", "logit_bias", "stream_options"} <= set(properties)
    assert set(operation["responses"]) == {"200", "default"}
    assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}


@pytest.mark.parametrize("extra", [{}, {"logprobs": 1, "echo": True}])
def test_completions_are_what_the_schema_says(stack: StackFactory, extra: Json) -> None:
    kind = TypeAdapter(Completion)
    kind.validate_python(stack().completion(**extra), strict=True, extra="forbid")
    for event in stack().completion_events(stream_options={"include_usage": True}, **extra):
        kind.validate_python(event, strict=True, extra="forbid")


@pytest.mark.parametrize("extra", [{}, {"logprobs": True, "top_logprobs": 2}])
def test_chats_are_what_the_schema_says(stack: StackFactory, extra: Json) -> None:
    TypeAdapter(ChatCompletion).validate_python(stack().chat(**extra), strict=True, extra="forbid")
    for event in stack().chat_events(stream_options={"include_usage": True}, **extra):
        TypeAdapter(ChatChunk).validate_python(event, strict=True, extra="forbid")


def test_the_tokenizer_tells_of_itself(stack: StackFactory) -> None:
    info = stack().run(lambda client: client.get("/tokenizer_info")).json()
    assert info["eos_token"] == "<|im_end|>"
    assert (info["eos_token_id"], info["bos_token"], info["bos_token_id"]) == (261, None, None)
    assert (info["vocab_size"], info["model_max_length"]) == (262, 200)
    assert info["chat_template"] == TEMPLATE
