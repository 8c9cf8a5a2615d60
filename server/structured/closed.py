"""Objects with nothing but what their schema names, so that a model does not add properties for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties")
_BY_NAME = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_SINGLE = ("items",)


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with `additionalProperties` false wherever properties are named and nothing is said of others.

    What it describes is still described by `schema`. One whose parts are put together is left as it is: closed, they
    would exclude each other.
    """
    return dict(schema) if _is_composed(schema) else _closed(schema)


def _is_composed(node: Any) -> bool:
    if isinstance(node, Mapping):
        return "allOf" in node or ("$ref" in node and len(node) > 1) or any(map(_is_composed, node.values()))
    return isinstance(node, list) and any(map(_is_composed, node))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    result = dict(schema)
    for keyword in _BY_NAME:
        if isinstance(schema.get(keyword), Mapping):
            result[keyword] = {name: _closed(each) for name, each in schema[keyword].items()}
    for keyword in _LISTS:
        if isinstance(schema.get(keyword), list):
            result[keyword] = [_closed(each) for each in schema[keyword]]
    for keyword in _SINGLE:
        if keyword in schema:
            result[keyword] = _closed(schema[keyword])
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and not any(keyword in schema for keyword in _OPEN):
        alternatives = any(keyword in schema for keyword in ("anyOf", "oneOf"))
        if not alternatives and set(schema.get("required", ())) <= set(properties):
            result["additionalProperties"] = False
    return result
