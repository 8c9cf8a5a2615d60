"""Answers that must have a form: whatever the model would rather say, they have it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import jsonschema
import pytest

from tests.server.stack import CHAT_HI, CHAT_HI_TEXT, Json, Model, Stack

StackFactory = Callable[..., Stack]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def schema_format(schema: Any) -> Json:
    """A body's response_format."""
    return {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("reply", ["nothing like it", '{"name": "Ann", "age": 5}', "", '{"age": "x'])
def test_a_schema_is_kept_whatever_the_model_wants(stack: StackFactory, model: Model, reply: str) -> None:
    model.says(reply, to=CHAT_HI_TEXT)
    body = {"response_format": schema_format(PERSON), "max_tokens": 100}
    choice = stack(model).chat(**body)["choices"][0]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
    events = stack(model).chat_events(**body)
    streamed = "".join(c["delta"].get("content", "") for event in events for c in event["choices"])
    assert streamed == choice["message"]["content"]


def test_what_the_model_says_stays_if_it_has_the_form(stack: StackFactory, model: Model) -> None:
    reply = '{\n  "name": "Zoë",\n  "age": 33\n}'
    body = {"response_format": schema_format(PERSON), "max_tokens": 100}
    assert stack(model.says(reply, to=CHAT_HI_TEXT)).chat(**body)["choices"][0]["message"]["content"] == reply


FORMS: list[tuple[Json, str, str]] = [
    ({"response_format": {"type": "json_object"}}, '{"a": [1, null]} and more', r'\{"a": \[1, null\]\}'),
    ({"structured_outputs": {"json": {"type": "integer", "minimum": 5, "maximum": 7}}}, "9", r"[567]"),
    ({"structured_outputs": {"json": '{"enum": ["é", "b"]}'}}, '"é"', r'"é"'),
    ({"structured_outputs": {"json_object": True}}, "{}", r"\{\}"),
    ({"structured_outputs": {"regex": "[a-c]{3}-[0-9]{2}x"}}, "bcd-12", r"bca-12x"),
    ({"structured_outputs": {"choice": ["yes", "no", 'a "quoted"\nline\\']}}, "nay", r"no"),
    ({"structured_outputs": {"choice": ["yes", 'a "quoted"\nline\\']}}, "a ", r'a "quoted"\nline\\'),
    ({"structured_outputs": {"grammar": 'start: "x"+ end\nend: "y" | "z"'}}, "xxxz", r"xxxz"),
    ({"structured_outputs": {"grammar": 'root ::= "x"+ end\nend ::= "y" | "z"'}}, "xxz", r"xxz"),
    (
        {"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}},
        '{"name":"A"',
        r'\{"name":"A","age":[0-9]+\}',
    ),
]


@pytest.mark.parametrize(("body", "reply", "pattern"), FORMS)
def test_forms(stack: StackFactory, model: Model, body: Json, reply: str, pattern: str) -> None:
    text = stack(model.says(reply)).completion(**body, max_tokens=100)["choices"][0]["text"]
    assert re.fullmatch(pattern, text), text


def test_blanks_do_not_go_on_for_ever(stack: StackFactory, model: Model) -> None:
    body = {"response_format": schema_format(PERSON), "max_tokens": 150}
    model.says("{" + " \n" * 200, to=CHAT_HI_TEXT)
    content = stack(model).chat(**body)["choices"][0]["message"]["content"]
    assert max(map(len, re.findall(r"\s+", content)), default=0) < 20
    jsonschema.validate(json.loads(content), PERSON)


def test_choices_and_neighbours_have_states_of_their_own(stack: StackFactory, model: Model) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        bodies = [
            {"prompt": ["hi", "hi"], "n": 2, "structured_outputs": {"regex": "ab{3}c"}},
            {"prompt": "hi"},
            {"prompt": "hi", "structured_outputs": {"choice": ["left"]}},
        ]
        answers = [(await client.post(COMPLETIONS, json=body)).json()["choices"] for body in bodies]
        assert [[choice["text"] for choice in choices] for choices in answers] == [["abbbc"] * 4, ["free"], ["left"]]

    stack(model.says("free")).run(ask)


WRONG: list[tuple[str, Any]] = [
    ("regex", "["),
    ("regex", "(?<=x)a"),
    ("regex", "(a{1000}){1000}"),
    ("regex", "." * 8193),
    ("regex", "(" * 4000 + "a" + ")" * 4000),
    ("regex", ""),
    ("choice", []),
    ("choice", [""]),
    ("choice", "yes"),
    ("choice", ["x"] * 1025),
    ("grammar", "start: missing"),
    ("grammar", "root ::= [ ::"),
    ("grammar", "start: start"),
    ("grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000),
    ("grammar", "x" * 70_000),
    ("json", {"type": "nope"}),
    ("json", {"type": 7}),
    ("json", {"$ref": "#/missing"}),
    ("json", {"$ref": "#"}),
    ("json", {"$ref": "http://127.0.0.1/x"}),
    ("json", []),
    ("json", 7),
    ("json", "not json"),
    ("json", False),
    ("json", {"enum": []}),
    ("json", {"type": "array", "minItems": 3, "maxItems": 2}),
    ("json", {"type": "string", "pattern": "["}),
    ("json", {"type": "string", "format": "nonsense"}),
    ("json", {"type": "array", "uniqueItems": True}),
    ("json", {"not": {"type": "string"}}),
    ("json", {"type": "object", "properties": []}),
    ("json", {"type": "object", "required": "x"}),
    ("json", {"type": "string", "minLength": "x"}),
    ("json", {"type": "integer", "minimum": -(10**30)}),
    ("json", {"enum": ["x" * 1000] * 10_000}),
    ("json_object", False),
    ("structural_tag", {"x": 1}),
]


@pytest.mark.parametrize(("form", "value"), WRONG, ids=range(len(WRONG)))
def test_forms_that_cannot_be_kept_are_refused_at_the_door(stack: StackFactory, form: str, value: Any) -> None:
    server = stack()
    began = time.monotonic()

    async def ask(client: httpx.AsyncClient) -> None:
        response = await client.post(COMPLETIONS, json={"prompt": "hi", "structured_outputs": {form: value}})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"].startswith("structured_outputs")
        assert len(response.content) < 1_000
        assert server.model.num_steps == 0
        assert (await client.post(COMPLETIONS, json={"prompt": "hi"})).status_code == 200

    server.run(ask)
    assert time.monotonic() - began < 8


def test_deep_schemas_are_refused(stack: StackFactory) -> None:
    for depth, status in ((10, 200), (100, 400)):
        schema: Json = {"type": "integer"}
        for _ in range(depth):
            schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
        body = {"messages": CHAT_HI, "response_format": schema_format(schema), "max_tokens": 5}
        assert stack().post(CHAT, **body).status_code == status


@pytest.mark.parametrize(
    "body",
    [
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a"}, "min_tokens": 2},
        {"structured_outputs": {"regex": "a"}, "ignore_eos": True},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_what_contradicts_itself_is_refused(stack: StackFactory, path: str, body: Json) -> None:
    assert stack().post(path, prompt="hi", messages=CHAT_HI, **body).status_code == 400


def test_grammars_from_outside_are_not_kept_for_ever(stack: StackFactory) -> None:
    server = stack()

    async def ask(client: httpx.AsyncClient) -> None:
        for number in range(100):
            body = {"prompt": "hi", "structured_outputs": {"regex": f"a{number}"}, "max_tokens": 1}
            assert (await client.post(COMPLETIONS, json=body)).status_code == 200

    server.run(ask)
    assert server.services.grammars.num_remembered <= 32


def test_a_preempted_answer_keeps_its_form(stack: StackFactory, model: Model) -> None:
    server = stack(model, engine={"num_pages": 41, "max_model_len": 80})

    async def ask(client: httpx.AsyncClient) -> None:
        body = {"prompt": "hi", "n": 4, "structured_outputs": {"regex": "(abc){20}"}, "max_tokens": 70}
        choices = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        assert [choice["text"] for choice in choices] == ["abc" * 20] * 4
        assert server.engine.stats().preemptions_total > 0

    server.run(ask)
