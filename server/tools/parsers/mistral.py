"""Mistral: [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...], and of newer models [TOOL_CALLS]name[ARGS]{...}."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto

from server.protocol.tools import Tool
from server.tools.events import Arguments, CallBegins, CallForm, Event, ParserFamily, ToolParser
from server.tools.json_call import JsonCall
from server.tools.json_object import JsonObject
from server.tools.marked import MarkedCalls

_MARK, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(rf"([\w.-]{{1,64}})\s*({re.escape(_ID)}[\w-]*)?\s*({re.escape(_ARGUMENTS)})?\s*")
_MOST = 256  # characters before the arguments of a named call
_BLANKS = " \t\r\n"


class _State(Enum):
    START = auto()
    NAME = auto()
    ARGUMENTS = auto()
    BETWEEN = auto()
    LISTED = auto()
    OVER = auto()
    BROKEN = auto()


class MistralCalls:
    """A `CallReader` of what follows one mark: a list of calls, or the name of one and its arguments."""

    def __init__(self) -> None:
        self.raw = ""
        self.has_begun = False
        self._state = _State.START
        self._name = ""
        self._arguments = JsonObject()
        self._call = JsonCall()

    @property
    def is_over(self) -> bool:
        """See `CallReader`."""
        return self._state is _State.OVER

    @property
    def is_broken(self) -> bool:
        """See `CallReader`."""
        return self._state is _State.BROKEN

    def push(self, text: str) -> tuple[list[Event], str]:
        """See `CallReader`."""
        events: list[Event] = []
        while text and not (self.is_over or self.is_broken):
            taken = self._take(text, events)
            self.raw += text[:taken]
            text = text[taken:]
        return events, text

    def _take(self, text: str, events: list[Event]) -> int:
        """Read the beginning of `text`; how much of it."""
        if self._state is _State.LISTED:
            return self._take_listed(text, events)
        if self._state is _State.ARGUMENTS:
            return self._take_arguments(text, events)
        if self._state is _State.NAME:
            return self._take_name(text, events)
        if text[0] not in _BLANKS:
            return self._look(text[0])
        return 1

    def _look(self, character: str) -> int:
        """What follows the mark, or a call in a list. Returns how much of it needs no second look."""
        if self._state is _State.START:
            self._state = _State.BETWEEN if character == "[" else _State.NAME
            return int(character == "[")
        if character == "{":
            self._state, self._call = _State.LISTED, JsonCall()
            return 0
        if character == "]":
            self._state = _State.OVER if self.has_begun else _State.BROKEN
        elif character != ",":
            self._state = _State.BROKEN
        return 1

    def _take_listed(self, text: str, events: list[Event]) -> int:
        told, rest = self._call.push(text)
        events += told
        self.has_begun = self.has_begun or self._call.has_begun
        if self._call.is_over or self._call.is_broken:
            self._state = _State.BETWEEN if self._call.is_over else _State.BROKEN
        return len(text) - len(rest)

    def _take_name(self, text: str, events: list[Event]) -> int:
        before, brace, _ = text.partition("{")
        self._name += before
        match = _NAME.fullmatch(self._name) if brace else None
        if match is not None:
            self.has_begun = True
            self._state = _State.ARGUMENTS
            events.append(CallBegins(match.group(1)))
        elif brace or len(self._name) > _MOST:
            self._state = _State.BROKEN
        return len(before)

    def _take_arguments(self, text: str, events: list[Event]) -> int:
        taken = self._arguments.push(text)
        events.append(Arguments(text[:taken]))
        if self._arguments.is_over:
            self._state = _State.OVER
        return taken


def _parser(_: Sequence[Tool]) -> ToolParser:
    return MarkedCalls(_MARK, "", MistralCalls)


PARSER = ParserFamily(_parser, CallForm(f"{_MARK} [", "]", "arguments", ""), (_MARK, _ARGUMENTS, _ID))
