"""Qwen3-Coder: <tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic_core import from_json

from server.protocol.tools import Tool
from server.tools.events import Arguments, CallBegins, Event, ParserFamily, ToolParser
from server.tools.marked import MarkedCalls

_END = "</function>"
_CALL = re.compile(r"\s*<function=([^>\s]+)>(.*)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


class XmlCall:
    """A `CallReader`. Values are bare text, so the call is told of when it is complete and its types can be looked up.

    `schemas`: the properties of each function's arguments.
    """

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self.raw = ""
        self.is_over = False
        self.is_broken = False
        self._schemas = schemas

    @property
    def has_begun(self) -> bool:
        """See `CallReader`."""
        return self.is_over

    def push(self, text: str) -> tuple[list[Event], str]:
        """See `CallReader`."""
        before = len(self.raw)
        whole = self.raw + text
        end = whole.find(_END, max(0, before - len(_END)))
        if end < 0:
            self.raw = whole
            return [], ""
        self.raw = whole[: end + len(_END)]
        match = _CALL.fullmatch(whole[:end])
        self.is_over, self.is_broken = match is not None, match is None
        rest = text[len(self.raw) - before :]
        if match is None:
            return [], rest
        name, body = match.groups()
        properties = self._schemas.get(name, {})
        arguments = {key: _typed(value, properties.get(key)) for key, value in _PARAMETER.findall(body)}
        return [CallBegins(name), Arguments(json.dumps(arguments, ensure_ascii=False))], rest


def _typed(text: str, schema: Any) -> Any:
    """`text` as its schema wants it: text stays as it is, everything else is JSON where it can be."""
    text = text.removeprefix("\n").removesuffix("\n")
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text


def _parser(tools: Sequence[Tool]) -> ToolParser:
    schemas = {tool.function.name: tool.function.parameters.get("properties", {}) for tool in tools}
    return MarkedCalls("<tool_call>", "</tool_call>", partial(XmlCall, schemas))


PARSER = ParserFamily(_parser)
