"""Whatever is drawn under a schema's masks, the answer validates; jsonschema is the judge."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

from models.tokenizer import Tokenizer
from scheduler.request import ConstraintError
from server.errors import ApiError
from server.structured.compiler import GrammarCompiler
from server.structured.finite import finite
from server.structured.forms import Form, json_grammar

NUM_SCHEMAS = 60
MOST_TOKENS = 4_000
Schema = dict[str, Any]
EOS = 261
QUOTE = 1


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> Iterator[GrammarCompiler]:
    """A compiler over the tiny vocabulary."""
    made = GrammarCompiler(tokenizer, (EOS,))
    yield made
    made.close()


def drawn(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Schema, chooser: random.Random, *, ends_early: bool = True
) -> str:
    """A text that the masks of `schema` allow, drawn without any model; if not `ends_early`, as long as they let it."""
    constraint = asyncio.run(compiler.compile(Form(json_grammar(schema, "x"), "x"))).begin()
    output: tuple[int, ...] = ()
    while len(output) < MOST_TOKENS:
        if len(output) % 2:
            constraint.foresee(output)
        bits = np.unpackbits(constraint.allowed(output).view(np.uint8), bitorder="little")
        choices = np.flatnonzero(bits).tolist()
        assert choices, "there is always something to say"
        # ASCII more often than half characters, and an end wherever one is possible
        more = [choice for choice in choices if choice != EOS and (ends_early or choice != QUOTE)]
        if EOS in choices and (ends_early or not more):
            return tokenizer.decode(output)
        token = chooser.choice([choice for choice in more if choice < 94] or more or choices)
        output += (token,)
    raise AssertionError("the answer does not end")


def text_schema(r: random.Random) -> Schema:
    return r.choice(
        [
            {"type": "string", "maxLength": r.randint(0, 9)},
            {"type": "string", "enum": ["red", "grün", 'a "b"']},
            {"type": "string", "pattern": r"^[A-Z]{2}-\d{2,4}$"},
            {"type": "string", "format": r.choice(["date", "time", "ipv4", "uuid"])},
            {"const": r.choice(["x", 5, True, None])},
        ]
    )


def number_schema(r: random.Random) -> Schema:
    low = r.randint(-50, 50)
    return r.choice(
        [
            {"type": "integer", "minimum": low, "maximum": low + r.randint(0, 500)},
            {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": r.randint(2, 9)},
            {"type": "number", "exclusiveMinimum": low, "maximum": low + 7},
            {"type": "boolean"},
            {"type": "null"},
        ]
    )


def list_schema(r: random.Random, depth: int) -> Schema:
    least = r.randint(0, 2)
    if r.random() < 0.3:
        items = [any_schema(r, depth - 1) for _ in range(2)]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": 2}
    return {"type": "array", "items": any_schema(r, depth - 1), "minItems": least, "maxItems": least + r.randint(0, 2)}


def object_schema(r: random.Random, depth: int) -> Schema:
    names = r.sample(["id", "name", "größe", "a b", "tags", "x-y", "value"], r.randint(0, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: any_schema(r, depth - 1) for name in names},
        "required": r.sample(names, r.randint(0, len(names))),
    }
    if r.random() < 0.5:
        schema["additionalProperties"] = False
    return schema


def any_schema(r: random.Random, depth: int) -> Schema:
    makers: list[Callable[[], Schema]] = [lambda: text_schema(r), lambda: number_schema(r)]
    if depth > 0:
        makers += [lambda: list_schema(r, depth), lambda: object_schema(r, depth)] * 2
        makers.append(lambda: {"anyOf": [any_schema(r, depth - 1), {"type": "null"}]})
    return r.choice(makers)()


@pytest.mark.parametrize("seed", range(NUM_SCHEMAS))
def test_what_is_drawn_validates(compiler: GrammarCompiler, tokenizer: Tokenizer, seed: int) -> None:
    r = random.Random(seed)
    schema = object_schema(r, 3)
    value = json.loads(drawn(compiler, tokenizer, schema, r))
    jsonschema.validate(value, schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


@pytest.mark.parametrize(
    ("schema", "longest"),
    [
        ({"type": "number", "minimum": 1.5, "maximum": 2}, 11),
        ({"type": ["number", "null"], "exclusiveMinimum": -1000, "maximum": 99_000}, 15),
        ({"type": "number", "minimum": 0, "maximum": 10**15}, 20),
        ({"type": "string", "format": "email"}, 256),
        ({"type": "string", "format": "hostname"}, 255),
        ({"type": ["string", "null"], "format": "uri"}, 1002),
        ({"type": "string", "format": "date"}, 12),
        ({"type": "string", "format": "date-time"}, 34),
        ({"type": "string", "format": "time"}, 23),
        ({"type": "string", "format": "duration"}, 66),
        ({"type": "string", "format": "email", "maxLength": 20}, 22),
    ],
)
def test_what_could_go_on_for_ever_ends(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Schema, longest: int
) -> None:
    for seed in range(3):
        text = drawn(compiler, tokenizer, schema, random.Random(seed), ends_early=False)
        assert len(text) <= longest
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def follows(compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Schema, text: str) -> bool:
    """Whether the masks of `schema` allow `text` from its beginning to its end."""
    constraint = asyncio.run(compiler.compile(Form(json_grammar(schema, "x"), "x"))).begin()
    output: tuple[int, ...] = ()
    for token in (*tokenizer.encode(text, add_special_tokens=False), EOS):
        bits = np.unpackbits(constraint.allowed(output).view(np.uint8), bitorder="little")
        if not bits[token]:
            return False
        output += (token,)
    return True


@pytest.mark.parametrize(("year", "exists"), [("0000", False), ("0001", True), ("0010", True), ("2024", True)])
@pytest.mark.parametrize(("form", "rest"), [("date", ""), ("date-time", "T23:59:59Z")])
def test_dates_are_of_years_that_calendars_have(
    compiler: GrammarCompiler, tokenizer: Tokenizer, form: str, rest: str, year: str, exists: bool
) -> None:
    text = json.dumps(f"{year}-01-31{rest}")
    assert follows(compiler, tokenizer, {"type": "string", "format": form}, text) == exists


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": "number", "minimum": 0},
        {"type": "number", "minimum": 0, "maximum": 1e-12},
        {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 2.5},
        {"type": "integer", "minimum": 0, "maximum": 10},
        {"type": "number", "minimum": 0, "maximum": "ten"},
        {"type": "string", "format": "uuid"},
        {"type": "string", "format": "uri", "minLength": 2000},
        {"type": "string", "format": "date", "pattern": "^20"},
        {"allOf": [{"type": "number", "minimum": 0, "maximum": 10}, {"multipleOf": 0.125}]},
    ],
    ids=range(10),
)
def test_what_ends_or_needs_its_digits_is_left_as_it_is(schema: Schema) -> None:
    assert finite(schema) == schema


REFERRING: list[Schema] = [
    {
        "$defs": {"p": {"type": "integer", "minimum": 3, "maximum": 5}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/p"}},
        "required": ["a"],
    },
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    {"type": "object", "patternProperties": {"^[ab]$": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "array", "items": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "maxItems": 3},
    {"enum": [1, "two", None, {"three": [3]}]},
    {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in ("cat", "dog")
        ],
        "discriminator": {"propertyName": "kind"},
    },
]


@pytest.mark.parametrize("schema", REFERRING, ids=range(len(REFERRING)))
@pytest.mark.parametrize("seed", range(3))
def test_put_together_schemas(compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Schema, seed: int) -> None:
    jsonschema.validate(json.loads(drawn(compiler, tokenizer, schema, random.Random(seed))), schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {"type": "array", "contains": {"type": "integer"}},
        {"type": "object", "propertyNames": {"pattern": "^a"}},
        {"if": {"type": "string"}, "then": {"minLength": 2}},
        {"oneOf": [{"type": "number"}, {"type": "integer"}]},
        {"type": "object", "unevaluatedProperties": False},
    ],
    ids=["dependentRequired", "contains", "propertyNames", "if", "oneOf", "unevaluatedProperties"],
)
def test_a_keyword_that_cannot_be_kept_is_refused_by_name(
    compiler: GrammarCompiler, schema: Schema, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(ApiError) as refused:
        asyncio.run(compiler.compile(Form(json_grammar(schema, "x"), "x")))
    assert refused.value.status == 400
    assert request.node.callspec.id in refused.value.message


def test_what_goes_wrong_in_the_background_is_told_where_the_mask_is_wanted(compiler: GrammarCompiler) -> None:
    constraint = asyncio.run(compiler.compile(Form(json_grammar({"type": "integer"}, "x"), "x"))).begin()
    letter = (64,)
    constraint.foresee(letter)
    with pytest.raises(ConstraintError):
        constraint.allowed(letter)
