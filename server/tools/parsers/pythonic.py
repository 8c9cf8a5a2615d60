"""Llama 3.2 and 4, OLMo 3: the whole answer is a Python list of calls, [f(a=1, b="x"), g()]."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence

from server.protocol.tools import Tool
from server.tools.events import Arguments, CallBegins, Event, ParserFamily, Said, ToolParser

_MOST = 64 * 1024  # characters that are read as Python


class PythonicCalls:
    """A `ToolParser`. An answer that begins with a bracket is held until its end, when it is calls or text."""

    def __init__(self) -> None:
        self._buffer = ""
        self._is_text = False

    def push(self, text: str) -> list[Event]:
        """See `ToolParser`."""
        self._buffer += text
        start = self._buffer.lstrip()[:1]
        self._is_text = self._is_text or start not in ("", "[") or len(self._buffer) > _MOST
        if not self._is_text:
            return []
        shown, self._buffer = self._buffer, ""
        return [Said(shown)] if shown else []

    def end(self) -> list[Event]:
        """See `ToolParser`."""
        if not self._buffer:
            return []
        return _calls(self._buffer) or [Said(self._buffer)]


def _calls(text: str) -> list[Event]:
    """The calls that `text` is; empty if it is anything else."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return []
        return [event for element in tree.elts for event in _call(element)]
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []


def _call(node: ast.expr) -> list[Event]:
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name):
        raise ValueError("not a call by name")
    arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
    if None in arguments:
        raise ValueError("arguments without a name")
    try:
        return [CallBegins(node.func.id), Arguments(json.dumps(arguments, ensure_ascii=False))]
    except TypeError as error:
        raise ValueError("a value that JSON does not know") from error


def _parser(_: Sequence[Tool]) -> ToolParser:
    return PythonicCalls()


PARSER = ParserFamily(_parser)
