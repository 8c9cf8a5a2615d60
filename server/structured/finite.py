"""Schemas narrowed to what ends: a model may add properties, digits or letters for ever."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties")
_BY_NAME = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_SINGLE = ("items",)
_LONGEST = {  # characters: RFC 5321, RFC 1123, what is seen of URIs, and seconds with microseconds
    "email": 254,
    "hostname": 253,
    "uri": 1000,
    "date-time": len("2024-12-31T23:59:59.123456+01:00"),
    "time": len("23:59:59.123456+01:00"),
    "duration": 64,
}
_DATED = ("date", "date-time")
_FROM_YEAR_1 = "^(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-"  # RFC 3339 has a year 0, calendars have not
_DIGITS = 15  # of a number, that float64 keeps
_STEPS = (1e-9, 1e-3)  # the finest and the coarsest that a bounded number gets


def finite(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` without what has no end, wherever it says nothing of it.

    Objects get `additionalProperties` false where properties are named, strings of some formats a longest length, dates
    a year from 1 on, numbers between bounds a last decimal place. What it describes is still described by `schema`. One
    whose parts are put together is left as it is: narrowed, they might exclude each other.
    """
    return dict(schema) if _is_composed(schema) else _finite(schema)


def _is_composed(node: Any) -> bool:
    if isinstance(node, Mapping):
        return "allOf" in node or ("$ref" in node and len(node) > 1) or any(map(_is_composed, node.values()))
    return isinstance(node, list) and any(map(_is_composed, node))


def _finite(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    result = dict(schema)
    for keyword in _BY_NAME:
        if isinstance(schema.get(keyword), Mapping):
            result[keyword] = {name: _finite(each) for name, each in schema[keyword].items()}
    for keyword in _LISTS:
        if isinstance(schema.get(keyword), list):
            result[keyword] = [_finite(each) for each in schema[keyword]]
    for keyword in _SINGLE:
        if keyword in schema:
            result[keyword] = _finite(schema[keyword])
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and not any(keyword in schema for keyword in _OPEN):
        alternatives = any(keyword in schema for keyword in ("anyOf", "oneOf"))
        if not alternatives and set(schema.get("required", ())) <= set(properties):
            result["additionalProperties"] = False
    result.update(_shorter(schema))
    if (step := _step(schema)) is not None:
        result["multipleOf"] = step
    return result


def _shorter(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What keeps a string of a known format short, and a date within the calendar, where the sender does not say."""
    form = schema.get("format")
    if not isinstance(form, str):
        return {}
    keywords: dict[str, Any] = {}
    longest = _LONGEST.get(form)
    least = schema.get("minLength", 0)
    if longest is not None and "maxLength" not in schema and isinstance(least, int) and least <= longest:
        keywords["maxLength"] = longest
    if form in _DATED and "pattern" not in schema:
        keywords["pattern"] = _FROM_YEAR_1
    return keywords


def _step(schema: Mapping[str, Any]) -> float | None:
    """Where a number that has bounds may end; None if it is none, or there would be too few such numbers."""
    kinds = schema.get("type")
    if "multipleOf" in schema or "number" not in (kinds if isinstance(kinds, list) else [kinds]):
        return None
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if not all(type(bound) in (int, float) and 0 <= abs(bound) < 2.0**63 for bound in (low, high)):
        return None
    largest = max(abs(low), abs(high))
    step: float = _STEPS[0] if largest == 0 else 10.0 ** (math.ceil(math.log10(largest)) - _DIGITS)
    step = min(max(step, _STEPS[0]), _STEPS[1])
    return step if high - low > 1000 * step else None
