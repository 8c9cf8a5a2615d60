"""Every answer validates against the documents that OpenAI and Anthropic publish about their APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
from conftest import KEY, MODEL, Server
from published import validator

Json = dict[str, Any]
HI = [{"role": "user", "content": "Say hi."}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}}
FLAT_TOOL = {"type": "function", "strict": False, **TOOL["function"]}
TEXT = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}}


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """One that knows nothing of any API."""
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=300) as plain:
        yield plain


def post(client: httpx.Client, path: str, **body: Any) -> httpx.Response:
    """An answer with status 200."""
    answer = client.post(path, json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    return answer


def streamed(client: httpx.Client, path: str, **body: Any) -> list[Json]:
    """The events of a stream."""
    lines = post(client, path, stream=True, **body).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]


CHATS: dict[str, Json] = {
    "plain": {"max_completion_tokens": 5},
    "choices with logprobs": {"max_tokens": 5, "n": 2, "logprobs": True, "top_logprobs": 3},
    "a form": {"max_tokens": 60, "response_format": FORMAT},
    "a call": {"max_tokens": 100, "tools": [TOOL], "tool_choice": "required"},
    "maybe a call": {"max_tokens": 20, "tools": [TOOL], "logprobs": True},
    "a stop string": {"max_tokens": 30, "stop": ["i", "e"], "seed": 1},
}


@pytest.mark.parametrize("body", CHATS.values(), ids=CHATS)
def test_chats(client: httpx.Client, body: Json) -> None:
    path = "/v1/chat/completions"
    validator("openai", "CreateChatCompletionResponse").validate(post(client, path, messages=HI, **body).json())
    chunks = streamed(client, path, messages=HI, stream_options={"include_usage": True}, **body)
    assert len(chunks) > 2
    for chunk in chunks:
        validator("openai", "CreateChatCompletionStreamResponse").validate(chunk)


COMPLETIONS: dict[str, Json] = {
    "plain": {"prompt": "The sky is", "max_tokens": 5},
    "prompts and choices": {"prompt": ["The sky is", "The sea"], "n": 2, "max_tokens": 3},
    "scored": {"prompt": "The sky is", "max_tokens": 3, "echo": True, "logprobs": 2},
    "a form": {"prompt": "A place:", "response_format": FORMAT, "max_tokens": 60, "logprobs": 0},
}


@pytest.mark.parametrize("body", COMPLETIONS.values(), ids=COMPLETIONS)
def test_completions(client: httpx.Client, body: Json) -> None:
    whole = post(client, "/v1/completions", **body).json()
    for answer in (whole, *streamed(client, "/v1/completions", stream_options={"include_usage": True}, **body)):
        if answer.get("usage", True) is None:  # as the document says of chats, and not of these
            del answer["usage"]
        validator("openai", "CreateCompletionResponse").validate(answer)


RESPONSES: dict[str, Json] = {
    "plain": {"input": "Say hi.", "max_output_tokens": 16, "instructions": "Be brief.", "metadata": {"a": "b"}},
    "logprobs": {"input": HI, "max_output_tokens": 16, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "a form": {"input": "A place?", "max_output_tokens": 60, "text": TEXT},
    "a call": {"input": "The weather?", "max_output_tokens": 100, "tools": [FLAT_TOOL], "tool_choice": "required"},
}


@pytest.mark.parametrize("body", RESPONSES.values(), ids=RESPONSES)
def test_responses(client: httpx.Client, body: Json) -> None:
    whole = post(client, "/v1/responses", store=True, **body).json()
    for response in (whole, client.get(f"/v1/responses/{whole['id']}").json()):
        validator("openai", "Response").validate(response)
    told = streamed(client, "/v1/responses", **body)
    assert len(told) > 6
    for event in told:
        validator("openai", "ResponseStreamEvent").validate(event)


def test_an_error_in_the_middle_of_a_stream(client: httpx.Client) -> None:
    bans = {"structured_outputs": {"choice": ["x1"]}, "bad_words": ["1"]}  # which leave nothing after the x
    first, *_, last = streamed(client, "/v1/chat/completions", messages=HI, **bans)
    validator("openai", "CreateChatCompletionStreamResponse").validate(first)
    validator("openai", "ErrorResponse").validate(last)
    assert last["error"]["type"] == "invalid_request_error"


def test_models(client: httpx.Client) -> None:
    validator("openai", "ListModelsResponse").validate(client.get("/v1/models").json())
    validator("openai", "Model").validate(client.get(f"/v1/models/{MODEL}").json())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {"messages": HI, "temperature": 9}, 400),
        ("/v1/chat/completions", {}, 400),
        ("/v1/completions", {"prompt": "hi", "structured_outputs": {"choice": ["1"]}, "bad_words": ["1"]}, 400),
        ("/v1/completions", {"prompt": "hi", "model": "other"}, 404),
        ("/v1/responses", {"input": []}, 400),
        ("/v1/embeddings", {"input": "hi"}, 404),
    ],
)
def test_errors(client: httpx.Client, path: str, body: Json, status: int) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status
    validator("openai", "ErrorResponse").validate(answer.json())


MESSAGES: dict[str, Json] = {
    "plain": {"max_tokens": 5, "system": "Be brief."},
    "a stop string": {"max_tokens": 30, "stop_sequences": ["i", "e"]},
    "a tool": {
        "max_tokens": 100,
        "tools": [{"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any"},
    },
    "a form": {"max_tokens": 60, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
}


@pytest.mark.parametrize("body", MESSAGES.values(), ids=MESSAGES)
def test_messages(client: httpx.Client, body: Json) -> None:
    validator("anthropic", "Message").validate(post(client, "/v1/messages", messages=HI, **body).json())
    told = streamed(client, "/v1/messages", messages=HI, **body)
    assert [event["type"] for event in told][-1] == "message_stop"
    for event in told:
        validator("anthropic", "MessageStreamEvent").validate(event)


def test_counting_and_errors_of_messages(client: httpx.Client) -> None:
    counted = post(client, "/v1/messages/count_tokens", messages=HI).json()
    validator("anthropic", "CountMessageTokensResponse").validate(counted)
    refused = client.post("/v1/messages", json={"model": MODEL, "messages": HI})
    assert refused.status_code == 400
    validator("anthropic", "ErrorResponse").validate(refused.json())


@pytest.mark.parametrize("broken", [{"id": 1}, {"choices": [{}]}, {"object": "list"}, {"created": None}])
def test_the_documents_tell_right_from_wrong(client: httpx.Client, broken: Json) -> None:
    good = post(client, "/v1/chat/completions", messages=HI, max_tokens=1).json()
    with pytest.raises(jsonschema.ValidationError):
        validator("openai", "CreateChatCompletionResponse").validate(good | broken)
