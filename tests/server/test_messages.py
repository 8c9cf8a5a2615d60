"""Anthropic's API, through Anthropic's own client, which checks every answer against its types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import jsonschema
import pytest

from tests.server.stack import Json, Live, Model, Stack

StackFactory = Callable[..., Stack]
HI: Any = [{"role": "user", "content": "hi"}]
SCHEMA: Json = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"],
}
TOOLS: Any = [{"name": name, "description": "A function.", "input_schema": SCHEMA} for name in ("f", "g")]
CALL_F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL_G = '<tool_call>\n{"name": "g", "arguments": {"a": 2}}\n</tool_call>'


@pytest.fixture
def server(stack: StackFactory, model: Model, live: Callable[[Stack], Live]) -> Live:
    """A server that needs a key and lets its model call tools."""
    settings = {"api_keys": ("secret",), "enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    return live(stack(model, engine={"max_model_len": 2000}, **settings))


@pytest.fixture
def client(server: Live) -> Iterator[anthropic.Anthropic]:
    """A strict client of it."""
    with anthropic.Anthropic(
        base_url=server.url, api_key="secret", max_retries=0, _strict_response_validation=True
    ) as strict:
        yield strict


def create(client: anthropic.Anthropic, **changes: Any) -> anthropic.types.Message:
    """One answer."""
    return client.messages.create(**({"model": "tiny", "messages": HI, "max_tokens": 500} | changes))


def streamed(client: anthropic.Anthropic, **changes: Any) -> anthropic.types.Message:
    """The same answer, joined from a stream by the client."""
    with client.messages.stream(**({"model": "tiny", "messages": HI, "max_tokens": 500} | changes)) as stream:
        return stream.get_final_message()


def said(message: anthropic.types.Message) -> list[Any]:
    """What a message is made of."""
    return [
        block.text if block.type == "text" else (block.name, block.input)  # type: ignore[union-attr]
        for block in message.content
    ]


@pytest.mark.parametrize(
    ("reply", "changes", "blocks", "reason"),
    [
        ("Dobrý den 😀", {}, ["Dobrý den 😀"], "end_turn"),
        ("", {}, [], "end_turn"),
        ("one two", {"max_tokens": 3}, ["one"], "max_tokens"),
        ("one STOP two", {"stop_sequences": ["STOP"]}, ["one "], "stop_sequence"),
        (CALL_F, {"tools": TOOLS}, [("f", {"a": 1})], "tool_use"),
        (f"So.\n{CALL_F}\n{CALL_G}", {"tools": TOOLS}, ["So.", ("f", {"a": 1}), ("g", {"a": 2})], "tool_use"),
        (
            f"{CALL_F}{CALL_G}",
            {"tools": TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            [("f", {"a": 1})],
            "tool_use",
        ),
        ("no", {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "g"}}, [("g", {"a": 0})], "tool_use"),
        ("no", {"tools": TOOLS, "tool_choice": {"type": "none"}}, ["no"], "end_turn"),
    ],
)
def test_answers_whole_and_streamed(
    client: anthropic.Anthropic, model: Model, reply: str, changes: Json, blocks: list[Any], reason: str
) -> None:
    model.always = model.ids(reply)
    whole = create(client, **changes)
    assert (said(whole), whole.stop_reason) == (blocks, reason)
    assert whole.stop_sequence == ("STOP" if reason == "stop_sequence" else None)
    stream = streamed(client, **changes)
    assert (said(stream), stream.stop_reason, stream.stop_sequence) == (blocks, reason, whole.stop_sequence)
    assert stream.usage.output_tokens == whole.usage.output_tokens
    assert stream.usage.input_tokens == whole.usage.input_tokens > 0


def test_a_call_that_must_come(client: anthropic.Anthropic, model: Model) -> None:
    model.always = model.ids("never")
    name, value = said(create(client, tools=TOOLS, tool_choice={"type": "any"}))[0]
    assert name in ("f", "g")
    jsonschema.validate(value, SCHEMA)


def test_an_answer_of_a_form(client: anthropic.Anthropic, model: Model) -> None:
    model.always = model.ids("never")
    whole = create(client, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    (text,) = said(whole)
    jsonschema.validate(json.loads(text), SCHEMA)


def test_tokens_can_be_counted(client: anthropic.Anthropic) -> None:
    for changes in ({}, {"system": "Be kind."}, {"tools": TOOLS}):
        counted = client.messages.count_tokens(model="tiny", messages=HI, **changes)  # type: ignore[arg-type]
        assert counted.input_tokens == create(client, **changes).usage.input_tokens


def test_a_conversation_with_calls_reads_as_the_chat_that_says_the_same(server: Live) -> None:
    anthropic_way = {
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "x", "signature": "y"},
                    {"type": "text", "text": "b"},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": "42"},
                    {"type": "text", "text": "c"},
                ],
            },
        ],
    }
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    openai_way = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
        {"role": "user", "content": "c"},
    ]
    headers = {"x-api-key": "secret"}
    counted = httpx.post(
        f"{server.url}/v1/messages/count_tokens", json={"model": "tiny"} | anthropic_way, headers=headers
    )
    tokenized = httpx.post(f"{server.url}/tokenize", json={"messages": openai_way}, headers=headers)
    assert counted.json()["input_tokens"] == tokenized.json()["count"]


def test_a_turn_may_be_nothing_but_a_call(client: anthropic.Anthropic, model: Model) -> None:
    model.always = model.ids(CALL_F)
    call = create(client, tools=TOOLS).content[0]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": []}  # type: ignore[union-attr]
    history = [*HI, {"role": "assistant", "content": [call.model_dump()]}, {"role": "user", "content": [result]}]
    assert create(client, messages=history, tools=TOOLS).stop_reason == "tool_use"


def test_the_assistants_last_turn_is_continued(client: anthropic.Anthropic) -> None:
    begun = [*HI, {"role": "assistant", "content": "The answer"}]
    with_end = [*HI, {"role": "assistant", "content": "The answer"}, {"role": "user", "content": ""}]
    one, two = (client.messages.count_tokens(model="tiny", messages=messages) for messages in (begun, with_end))  # type: ignore[arg-type]
    assert one.input_tokens < two.input_tokens


def test_errors_become_the_clients_own(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.AuthenticationError):
        create(client.with_options(api_key="wrong"))
    with pytest.raises(anthropic.NotFoundError, match="not served"):
        create(client, model="other")
    with pytest.raises(anthropic.BadRequestError, match="temperature") as refused:
        create(client, extra_body={"temperature": 5})
    assert refused.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools"),
        ({"tools": [{"name": "f", "input_schema": {"type": 7}}]}, "type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "h"}}, "'h'"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "function"),
        ({"container": "x"}, "container"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "not"),
    ],
)
def test_mistakes_are_told_in_anthropics_shape(server: Live, changes: Json, word: str) -> None:
    body = {"model": "tiny", "messages": HI, "max_tokens": 5} | changes
    response = httpx.post(f"{server.url}/v1/messages", json=body, headers={"x-api-key": "secret"})
    assert response.status_code == 400, response.text
    assert set(response.json()) == {"type", "error", "request_id"}
    assert response.json()["request_id"] == response.headers["x-request-id"]
    assert word in response.json()["error"]["message"]


def test_an_error_in_a_stream_is_raised(client: anthropic.Anthropic, model: Model) -> None:
    model.always = model.ids("abcdefgh")
    model.failing.add("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    told: list[str] = []
    with (
        client.messages.create(model="tiny", messages=HI, max_tokens=9, stream=True) as stream,
        pytest.raises(anthropic.APIStatusError, match="engine failed"),
    ):
        told.extend(part.type for part in stream)
    assert "message_stop" not in told
