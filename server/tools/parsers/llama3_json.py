"""Llama 3.1 and later: the whole answer is {"name": ..., "parameters": {...}}, several of them parted by semicolons."""

from __future__ import annotations

from collections.abc import Sequence

from server.protocol.tools import Tool
from server.tools.events import CallForm, Event, ParserFamily, Said, ToolParser
from server.tools.json_call import JsonCall

_TAG = "<|python_tag|>"
_BETWEEN = " \t\r\n;,"


class BareCalls:
    """A `ToolParser` for answers that are calls from their first character, or text."""

    def __init__(self) -> None:
        self._start: str | None = ""  # what came before it was clear; None once the answer is text
        self._call: JsonCall | None = None
        self._has_called = False

    def push(self, text: str) -> list[Event]:
        """See `ToolParser`."""
        events: list[Event] = []
        while text:
            if self._start is None:
                return [*events, Said(text)]
            text = self._look(text, events) if self._call is None else self._read(self._call, text, events)
        return events

    def end(self) -> list[Event]:
        """See `ToolParser`."""
        unread = self._start or ""
        if self._call is not None:
            unread += "" if self._call.has_begun else self._call.raw
        elif self._has_called and not unread.strip(_BETWEEN):
            return []
        return [Said(unread)] if unread else []

    def _look(self, text: str, events: list[Event]) -> str:
        """Find out what follows; returns what is left to read."""
        assert self._start is not None
        whole = self._start + text
        rest = whole.lstrip(_BETWEEN if self._has_called else _BETWEEN[:4]).removeprefix(_TAG).lstrip()
        if rest.startswith("{"):
            self._start, self._call = whole[: len(whole) - len(rest)], JsonCall()
            return rest
        if not rest or _TAG.startswith(rest):
            self._start = whole
            return ""
        events.append(Said(whole))
        self._start = None
        return ""

    def _read(self, call: JsonCall, text: str, events: list[Event]) -> str:
        told, rest = call.push(text)
        events += told
        if call.has_begun:
            self._start, self._has_called = "", True
        if call.is_over or call.is_broken:
            self._call = None
            if not call.has_begun:
                events.append(Said((self._start or "") + call.raw))
                self._start = None
        return rest


def _parser(_: Sequence[Tool]) -> ToolParser:
    return BareCalls()


PARSER = ParserFamily(_parser, CallForm("", "", "parameters", "; "), (_TAG,))
