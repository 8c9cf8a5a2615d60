"""JSON schemas of the kinds that people send, drawn at random: records, lists, choices, references, things left out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

_NAMES = (
    "id", "name", "title", "email", "price", "quantity", "status", "tags", "address", "street", "city", "zip_code",
    "created_at", "isActive", "first-name", "größe", "notes", "score", "items", "owner", "kind", "url", "$ref_id",
)  # fmt: skip
_WORDS = ("red", "green", "blue", "open", "closed", "in progress", "N/A", 'say "hi"', "naïve", "a/b", "")
_PATTERNS = (
    r"^[A-Z]{2,3}-\d{4}$",
    r"^\d{5}(-\d{4})?$",
    r"^(\+\d{1,2} )?\d{3}-\d{4}$",
    r"^[a-z_][a-z0-9_]{0,15}$",
    r"^#[0-9a-fA-F]{6}$",
    r"^v\d{1,3}\.\d{1,3}$",
)
_FORMATS = ("date", "date-time", "time", "email", "uuid", "ipv4", "hostname", "uri")
_DEPTH = 3


def random_schemas(count: int, seed: int) -> list[Schema]:
    """`count` schemas of objects; the same for the same seed. What they ask for is finite and never contradictory."""
    return [_document(random.Random(f"{seed}/{number}")) for number in range(count)]


def _document(r: random.Random) -> Schema:
    schema = _record(r, _DEPTH, r.randint(1, 6))
    if r.random() < 0.4:
        name = r.choice(("Address", "Money", "Person"))
        schema["$defs"] = {name: _record(r, 1, r.randint(1, 3))}
        target: Schema = {"$ref": f"#/$defs/{name}"}
        if r.random() < 0.5:
            target = {"type": "array", "items": target, "maxItems": 2}
        schema["properties"]["referred"] = target
        schema["required"] = [*schema["required"], "referred"]
    if r.random() < 0.3:
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


def _record(r: random.Random, depth: int, size: int) -> Schema:
    names = r.sample(_NAMES, size)
    schema: Schema = {
        "type": "object",
        "properties": {name: _described(r, _value(r, depth - 1)) for name in names},
        "required": [name for name in names if r.random() < 0.7],
    }
    if r.random() < 0.6:
        schema["additionalProperties"] = False
    return schema


def _described(r: random.Random, schema: Schema) -> Schema:
    """`schema` with annotations, which change nothing."""
    if r.random() < 0.3:
        schema["description"] = "What this is."
    if r.random() < 0.1:
        schema["title"] = "Title"
    return schema


def _value(r: random.Random, depth: int) -> Schema:
    kinds: list[Callable[[], Schema]] = [lambda: _text(r), lambda: _number(r), lambda: _choice(r), lambda: _flag(r)]
    if depth > 0:
        kinds += [
            lambda: _list(r, depth),
            lambda: _record(r, depth, r.randint(1, 3)),
            lambda: _alternatives(r, depth),
            lambda: _nullable(r, depth),
        ]
    return r.choice(kinds)()


def _text(r: random.Random) -> Schema:
    kind = r.randrange(4)
    if kind == 0:
        return {"type": "string", "pattern": r.choice(_PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": r.choice(_FORMATS)}
    least = r.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + r.randint(1, 20)}


def _number(r: random.Random) -> Schema:
    low = r.choice((-1000, -5, 0, 1, 10))
    high = low + r.choice((1, 7, 100, 100_000))
    kind = r.randrange(5)
    if kind == 0:
        return {"type": "integer", "minimum": low, "maximum": high}
    if kind == 1:
        return {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high + 1}
    if kind == 2:
        return {"type": "number", "minimum": low + 0.5, "maximum": high}
    if kind == 3:
        return {"type": "number", "exclusiveMinimum": low, "maximum": high}
    return {"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": r.choice((2, 5, 10))}


def _choice(r: random.Random) -> Schema:
    kind = r.randrange(4)
    if kind == 0:
        return {"const": r.choice((*_WORDS, 1, True))}
    if kind == 1:
        return {"enum": [*r.sample(_WORDS, 2), 7, None, False]}
    return {"type": "string", "enum": r.sample(_WORDS, r.randint(1, 4))}


def _flag(r: random.Random) -> Schema:
    return {"type": r.choice(("boolean", "null"))}


def _list(r: random.Random, depth: int) -> Schema:
    if r.random() < 0.2:
        items = [_value(r, depth - 1) for _ in range(2)]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": 2}
    least = r.randint(0, 2)
    return {"type": "array", "items": _value(r, depth - 1), "minItems": least, "maxItems": least + r.randint(0, 2)}


def _alternatives(r: random.Random, depth: int) -> Schema:
    if r.random() < 0.5:
        kinds = r.sample(("cat", "dog", "fish"), 2)
        return {"anyOf": [_tagged(r, kind) for kind in kinds]}
    return {"anyOf": [_text(r), _number(r), _list(r, depth)]}


def _tagged(r: random.Random, kind: str) -> Schema:
    record = _record(r, 1, 1)
    record["properties"] = {"type": {"const": kind}, **record["properties"]}
    record["required"] = ["type", *record["required"]]
    return record


def _nullable(r: random.Random, depth: int) -> Schema:
    inner = _value(r, depth - 1)
    if isinstance(inner.get("type"), str) and "enum" not in inner and r.random() < 0.5:
        return inner | {"type": sorted({inner["type"], "null"})}
    return {"anyOf": [inner, {"type": "null"}]}
