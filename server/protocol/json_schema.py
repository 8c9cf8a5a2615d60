"""What a JSON schema from outside must be before anything reads it: well-formed, and of bounded size and depth."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_DEPTH = 64
MAX_NODES = 10_000
MAX_CHARACTERS = 128 * 1024
MAX_PATTERN = 1024

_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def checked_schema(schema: dict[str, Any] | bool) -> dict[str, Any] | bool:
    """`schema` as it is. Raises ValueError, with the place in the schema, if it is none or too large."""
    _check_size(schema)
    _check(schema, "schema")
    return schema


def _check_size(schema: Any) -> None:
    num_nodes = num_characters = 0
    level = [schema]
    for _ in range(MAX_DEPTH):
        if not level:
            return
        num_nodes += len(level)
        num_characters += sum(len(node) for node in level if isinstance(node, str))
        if num_nodes > MAX_NODES or num_characters > MAX_CHARACTERS:
            raise ValueError(f"a schema may hold at most {MAX_NODES} values and {MAX_CHARACTERS} characters")
        level = [child for node in level for child in _children(node)]
    raise ValueError(f"a schema may be at most {MAX_DEPTH} levels deep")


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.keys()
        yield from node.values()
    elif isinstance(node, list):
        yield from node


def _check(schema: Any, place: str) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f"{place} must be an object that describes a value")
    for keyword, check in _CHECKS.items():
        if keyword in schema:
            check(schema[keyword], f"{place}.{keyword}")


def _check_type(value: Any, place: str) -> None:
    names = value if isinstance(value, list) and value else [value]
    if not all(isinstance(name, str) and name in _TYPES for name in names):
        raise ValueError(f"{place} must be one or more of {', '.join(sorted(_TYPES))}")


def _check_count(value: Any, place: str) -> None:
    if type(value) is not int or value < 0:
        raise ValueError(f"{place} must be a whole number from 0")


def _check_number(value: Any, place: str) -> None:
    if type(value) not in (int, float):
        raise ValueError(f"{place} must be a number")


def _check_pattern(value: Any, place: str) -> None:
    if not isinstance(value, str) or len(value) > MAX_PATTERN:
        raise ValueError(f"{place} must be a regular expression of at most {MAX_PATTERN} characters")
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{place} is no regular expression: {error}") from None


def _check_names(value: Any, place: str) -> None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{place} must be a list of names")


def _check_values(value: Any, place: str) -> None:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{place} must be a list of at least one value")


def _check_reference(value: Any, place: str) -> None:
    if not isinstance(value, str) or not value.startswith("#"):
        raise ValueError(f"{place} must point into the same schema, such as #/$defs/name")


def _check_schemas(value: Any, place: str) -> None:
    _check_values(value, place)
    for number, schema in enumerate(value):
        _check(schema, f"{place}[{number}]")


def _check_named(value: Any, place: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{place} must be an object that names schemas")
    for name, schema in value.items():
        _check(schema, f"{place}.{name[:40]}")


_CHECKS: Mapping[str, Callable[[Any, str], None]] = {
    "type": _check_type,
    "pattern": _check_pattern,
    "required": _check_names,
    "enum": _check_values,
    "$ref": _check_reference,
    **dict.fromkeys(_COUNTS, _check_count),
    **dict.fromkeys(_NUMBERS, _check_number),
    **dict.fromkeys(_LISTS_OF_SCHEMAS, _check_schemas),
    **dict.fromkeys(_SINGLE_SCHEMAS, _check),
    **dict.fromkeys(_SCHEMAS_BY_NAME, _check_named),
}
