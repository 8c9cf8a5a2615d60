"""Hermes 2 Pro, Qwen 2.5, SmolLM2: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them."""

from __future__ import annotations

from collections.abc import Sequence

from server.protocol.tools import Tool
from server.tools.events import CallForm, ParserFamily, ToolParser
from server.tools.json_call import JsonCall
from server.tools.marked import MarkedCalls

FORM = CallForm("<tool_call>\n", "\n</tool_call>", "arguments", "\n")


def _parser(_: Sequence[Tool]) -> ToolParser:
    return MarkedCalls("<tool_call>", "</tool_call>", JsonCall)


PARSER = ParserFamily(_parser, FORM)
