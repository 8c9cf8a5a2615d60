"""OpenAI's newer API, through OpenAI's own client, which checks every answer against its types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.responses import Response

from server.serving.response_store import ResponseStore
from tests.server.stack import Json, Live, Model, Stack

StackFactory = Callable[..., Stack]
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMA: Json = {"type": "object", "properties": {"a": DIGIT}, "required": ["a"], "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "name": name, "description": "A function.", "parameters": SCHEMA, "strict": True}
    for name in ("f", "g")
]
CALL_F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL_G = '<tool_call>\n{"name": "g", "arguments": {"a": 2}}\n</tool_call>'


@pytest.fixture
def client(stack: StackFactory, model: Model, live: Callable[[Stack], Live]) -> Iterator[openai.OpenAI]:
    """A strict client of a server whose model may call tools."""
    settings = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    server = live(stack(model, engine={"max_model_len": 2000}, **settings))
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as strict:
        yield strict


def said(response: Response) -> list[Any]:
    """What a response is made of."""
    return [
        (item.name, json.loads(item.arguments)) if item.type == "function_call" else item.content[0].text  # type: ignore[union-attr]
        for item in response.output
    ]


def create(client: openai.OpenAI, **changes: Any) -> Response:
    """One answer."""
    response: Response = client.responses.create(**({"model": "tiny", "input": "hi"} | changes))
    return response


def streamed(client: openai.OpenAI, **changes: Any) -> tuple[Response, list[Any]]:
    """The same answer from a stream, with the events."""
    with client.responses.create(**({"model": "tiny", "input": "hi", "stream": True} | changes)) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events[-1].response, events


@pytest.mark.parametrize(
    ("reply", "changes", "items", "status"),
    [
        ("Dobrý den 😀", {}, ["Dobrý den 😀"], "completed"),
        ("", {}, [], "completed"),
        ("one two", {"max_output_tokens": 3}, ["one"], "incomplete"),
        (CALL_F, {"tools": TOOLS}, [("f", {"a": 1})], "completed"),
        (f"So.\n{CALL_F}\n{CALL_G}", {"tools": TOOLS}, ["So.", ("f", {"a": 1}), ("g", {"a": 2})], "completed"),
        (CALL_F + CALL_G, {"tools": TOOLS, "parallel_tool_calls": False}, [("f", {"a": 1})], "completed"),
        ("no", {"tools": TOOLS, "tool_choice": {"type": "function", "name": "g"}}, [("g", {"a": 0})], "completed"),
        ("no", {"tools": TOOLS, "tool_choice": "none"}, ["no"], "completed"),
    ],
)
def test_answers_whole_and_streamed(
    client: openai.OpenAI, model: Model, reply: str, changes: Json, items: list[Any], status: str
) -> None:
    model.always = model.ids(reply)
    whole = create(client, **changes)
    assert (said(whole), whole.status) == (items, status)
    response, events = streamed(client, **changes)
    assert (said(response), response.status) == (items, status)
    assert whole.usage is not None
    assert response.usage == whole.usage
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{status}"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == len(items)


def test_deltas_join_to_what_is_done(client: openai.OpenAI, model: Model) -> None:
    model.always = model.ids(f"Well.\n{CALL_F}")
    _, events = streamed(client, tools=TOOLS)
    for kind, done in (("output_text", "text"), ("function_call_arguments", "arguments")):
        joined = "".join(event.delta for event in events if event.type == f"response.{kind}.delta")
        assert joined == next(getattr(event, done) for event in events if event.type == f"response.{kind}.done")


def test_the_clients_own_helper_joins_streams(client: openai.OpenAI, model: Model) -> None:
    model.always = model.ids(f"Well.\n{CALL_F}")
    with client.responses.stream(model="tiny", input="hi", tools=TOOLS) as stream:
        final = stream.get_final_response()
    assert final.output_text == "Well."
    assert final.output[1].name == "f"  # type: ignore[union-attr]


def test_an_answer_of_a_form(client: openai.OpenAI, model: Model) -> None:
    model.always = model.ids("never")
    text: Any = {"format": {"type": "json_schema", "name": "digit", "schema": SCHEMA, "strict": True}}
    jsonschema.validate(json.loads(create(client, text=text).output_text), SCHEMA)


def test_logprobs(client: openai.OpenAI, model: Model) -> None:
    model.always = model.ids("abc")
    whole = create(client, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = whole.output[0].content[0].logprobs  # type: ignore[union-attr]
    assert "".join(each.token for each in logprobs[:3]) == "abc"
    assert [len(each.top_logprobs) for each in logprobs] == [2] * len(logprobs)


def test_nothing_is_kept_unless_asked(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="store"):
        client.responses.retrieve(create(client).id)
    kept = create(client, store=True)
    assert client.responses.retrieve(kept.id) == kept
    client.responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)


def test_a_kept_response_can_be_followed(client: openai.OpenAI, model: Model) -> None:
    model.always = model.ids("one")
    first = create(client, input="a", instructions="Be kind.", store=True)
    followed = create(client, input="b", previous_response_id=first.id)
    turns = [("user", "a"), ("assistant", "one"), ("user", "b")]
    at_once = create(client, input=[{"role": role, "content": content} for role, content in turns])
    assert followed.usage is not None
    assert at_once.usage is not None
    assert followed.usage.input_tokens == at_once.usage.input_tokens
    assert followed.previous_response_id == first.id
    with pytest.raises(openai.NotFoundError):
        create(client, previous_response_id="resp_unknown")


def test_a_kept_call_can_be_answered(client: openai.OpenAI, model: Model) -> None:
    model.always = model.ids(CALL_F)
    first = create(client, tools=TOOLS, store=True)
    result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "42"}  # type: ignore[union-attr]
    model.always = model.ids("It is 42.")
    assert create(client, input=[result], tools=TOOLS, previous_response_id=first.id).output_text == "It is 42."


def test_calls_go_back_and_forth(client: openai.OpenAI, model: Model) -> None:
    model.always = model.ids(CALL_F)
    first = create(client, tools=TOOLS)
    call = first.output[0]
    model.always = model.ids("It is 42.")
    history: list[Any] = [
        {"role": "user", "content": "hi"},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "42"},  # type: ignore[union-attr]
    ]
    assert create(client, input=history, tools=TOOLS).output_text == "It is 42."


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": 7}}]}, "parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "x"}, "conversation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"temperature": 5}, "temperature"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}, "response_format"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "name"),
    ],
)
def test_mistakes_are_refused(client: openai.OpenAI, changes: Json, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, **changes)
    assert (refused.value.param or "").startswith(param)


def test_an_error_in_a_stream_is_told(client: openai.OpenAI, model: Model) -> None:
    model.always = model.ids("abcdefgh")
    model.failing.add("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    with client.responses.create(model="tiny", input="hi", stream=True) as stream:
        events = list(stream)
    assert events[-1].type == "response.failed"
    assert "engine failed" in events[-1].response.error.message
    assert "response.completed" not in [event.type for event in events]


def test_what_is_kept_has_a_bound() -> None:
    store = ResponseStore()
    for number in range(3000):
        store.add({"id": f"r{number}", "text": "x" * 100_000}, ())
    with pytest.raises(Exception, match="no response"):
        store.get("r0", "x")
    assert store.get("r2999", "x").size > 100_000
    assert store.num_bytes <= 64 * 2**20
    store.remove("r2999")
    assert store.num_bytes <= 64 * 2**20 - 100_000
