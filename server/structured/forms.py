"""What a body asks for, as a grammar in llguidance's notation. Nothing is compiled here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from server.errors import ApiError
from server.protocol.structured import OutputFields, StructuredOutputs
from server.structured.finite import finite

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # there is none to import when this runs

# One blank, or one line break with its indentation: a model that likes blanks would otherwise write nothing else.
_WHITESPACE = r"[ \t]|\r?\n[ \t]{0,16}"
_FLEXIBLE: JsonCompileOptions = {"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE, "lenient": False}
_COMPACT: JsonCompileOptions = {"whitespace_flexible": False, "lenient": False}


@dataclass(frozen=True, slots=True)
class Form:
    """A grammar, and the field of the body that asked for it."""

    grammar: str
    param: str


def form_of(body: OutputFields) -> Form | None:
    """The form that `body` asks for; None for free text. Raises ApiError for a grammar that cannot be read."""
    if body.structured_outputs is not None:
        return _structured(body.structured_outputs)
    asked = body.response_format
    if asked.type == "text":
        return None
    schema = {"type": "object"} if asked.json_schema is None else asked.json_schema.schema_
    return Form(json_grammar(schema, "response_format"), "response_format")


def json_grammar(schema: Mapping[str, Any] | bool, param: str, *, compact: bool = False) -> str:
    """The grammar of the JSON values that `schema`, sent as `param`, describes; `compact`: without blanks."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    options = _COMPACT if compact else _FLEXIBLE
    try:
        return LLMatcher.grammar_from_json_schema(finite(schema), overrides=options)
    except ValueError as error:  # numbers beyond 64 bits
        raise ApiError(f"{param}: {str(error)[:200]}", param=param) from None


def json_in_lark(schema: Mapping[str, Any]) -> str:
    """A Lark expression for the JSON values that `schema` describes."""
    return "%json " + json.dumps({**finite(schema), "x-guidance": _FLEXIBLE})


def one_of(choices: Sequence[str]) -> str:
    """A Lark expression for one of `choices`."""
    return " | ".join(map(json.dumps, choices))


def _structured(asked: StructuredOutputs) -> Form:
    if asked.json_ is not None or asked.json_object:
        schema = {"type": "object"} if asked.json_ is None else asked.json_
        grammar = json_grammar(schema, "structured_outputs", compact=asked.disable_any_whitespace)
    elif asked.regex is not None:
        grammar = LLMatcher.grammar_from_regex(asked.regex)
    elif asked.choice is not None:
        grammar = LLMatcher.grammar_from_lark(f"start: {one_of(asked.choice)}")
    else:
        grammar = LLMatcher.grammar_from_lark(_as_lark(asked.grammar or ""))
    return Form(grammar, "structured_outputs")


def _as_lark(grammar: str) -> str:
    """`grammar` in Lark's notation, if it is in GBNF."""
    try:
        lark: str = any_to_lark(grammar)
    except (GbnfToLarkError, RecursionError) as error:
        message = f"structured_outputs.grammar: {str(error)[:200]}"
        raise ApiError(message, param="structured_outputs.grammar") from None
    return lark
