"""Request bodies and stream events in OpenAI's format."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from client.prompts import Content
from client.wire import BodyTemplate, StreamEvent, error_text


def body(template: BodyTemplate, *said: Content) -> dict[str, Any]:
    rendered: dict[str, Any] = json.loads(template.render(said, 9))
    return rendered


def parse(payload: object) -> StreamEvent:
    return StreamEvent.model_validate_json(json.dumps(payload))


def test_completion_body() -> None:
    assert body(BodyTemplate("openai", "m"), [5, 6]) == {
        "model": "m",
        "prompt": [5, 6],
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_chat_body() -> None:
    template = BodyTemplate("openai-chat", "m", sampling={"temperature": 0.0}, ignore_eos=True)
    assert body(template, "hi") == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_completion_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "ignore_eos": True,
    }


def test_alternatives_are_asked_for_as_each_endpoint_wants_it() -> None:
    assert body(BodyTemplate("openai", "m", logprobs=3), "hi")["logprobs"] == 3
    chat = body(BodyTemplate("openai-chat", "m", logprobs=3), "hi")
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 3)


def test_a_conversation_becomes_messages_or_one_text() -> None:
    said = ("hi", "hello", "how are you?")
    assert body(BodyTemplate("openai-chat", "m"), *said)["messages"] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "how are you?"},
    ]
    assert body(BodyTemplate("openai", "m"), *said)["prompt"] == "hi\nhello\nhow are you?"


def test_extra_fields_win_and_objects_are_merged() -> None:
    extra = {"max_tokens": 3, "top_p": 0.5, "stream_options": {"continuous_usage_stats": True}}
    got = body(BodyTemplate("openai", "m", extra=extra), "x")
    assert (got["max_tokens"], got["top_p"]) == (3, 0.5)
    assert got["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"choices": [{"text": "a"}]}, "a"),
        ({"choices": [{"delta": {"content": "a"}}]}, "a"),
        ({"choices": [{"delta": {"reasoning": "a"}}]}, "a"),
        ({"choices": [{"delta": {"reasoning_content": "a", "content": None}}]}, "a"),
        ({"choices": [{"delta": {"refusal": "a"}}]}, "a"),
        ({"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]}, "f{}"),
        ({"choices": [{"text": "a"}, {"text": "b"}]}, "ab"),
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, ""),
        ({"choices": [{"delta": {"role": "assistant", "content": None}}]}, ""),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, ""),
        ({"choices": [], "usage": {"completion_tokens": 3}}, ""),
        ({"choices": None}, ""),
        ({}, ""),
    ],
)
def test_text_of_an_event(payload: object, text: str) -> None:
    event = parse(payload)
    assert event.text == text
    assert event.error_message is None


def test_finish_reason() -> None:
    assert parse({"choices": [{"text": "", "finish_reason": "length"}]}).finishes
    assert not parse({"choices": [{"text": "a", "finish_reason": None}]}).finishes


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"error": {"message": "no", "type": "x", "param": None, "code": 500}}, "no"),
        ({"error": "Unauthorized"}, "Unauthorized"),
        ({"object": "error", "message": "flat", "code": 400}, "flat"),
        ({"error": {}}, "error without a message"),
        ({"object": "error"}, "error without a message"),
    ],
)
def test_errors_in_every_shape(payload: object, message: str) -> None:
    assert parse(payload).error_message == message
    assert error_text(json.dumps(payload).encode()) == message


@pytest.mark.parametrize(
    "payload", [[], 3, "x", None, {"choices": 5}, {"choices": [1]}, {"usage": {"completion_tokens": []}}]
)
def test_what_is_no_event_is_refused(payload: object) -> None:
    with pytest.raises(ValidationError):
        parse(payload)


def test_an_error_body_that_is_no_json() -> None:
    assert error_text(b"<html>Bad Gateway</html>") == "<html>Bad Gateway</html>"
    assert error_text(b'{"detail":"Not Found"}') == '{"detail":"Not Found"}'
    assert len(error_text(b"x" * 9999)) == 200
