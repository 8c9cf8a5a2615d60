"""Calls between marks, such as <tool_call> and </tool_call>."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from server.tools.events import Event
from server.tools.text import Prose, held


class CallReader(Protocol):
    """Reads what stands between the marks; see `server.tools.json_call.JsonCall`."""

    raw: str

    @property
    def is_over(self) -> bool:
        """Whether the call is complete."""

    @property
    def is_broken(self) -> bool:
        """Whether this cannot be a call, or not go on as one."""

    @property
    def has_begun(self) -> bool:
        """Whether a call was told of."""

    def push(self, text: str) -> tuple[list[Event], str]:
        """What `text` makes certain, and what of it follows the call."""


class MarkedCalls:
    """A `ToolParser` for calls that `begin` announces; `end` may be missing. What cannot be read as a call is text."""

    def __init__(self, begin: str, end: str, reader: Callable[[], CallReader]) -> None:
        self._begin = begin
        self._end = end
        self._reader = reader
        self._prose = Prose()
        self._buffer = ""
        self._call: CallReader | None = None
        self._is_after_call = False

    def push(self, text: str) -> list[Event]:
        """See `ToolParser`."""
        self._buffer += text
        events: list[Event] = []
        while self._advance(events):
            pass
        return events

    def end(self) -> list[Event]:
        """See `ToolParser`."""
        events: list[Event] = []
        if self._call is not None and not self._call.has_begun:
            events += self._prose.say(self._begin + self._call.raw)
        elif self._call is None and not self._is_after_call:
            events += self._prose.say(self._buffer)
        return events + self._prose.end()

    def _advance(self, events: list[Event]) -> bool:
        """Take one step through the buffer; False when it waits for more."""
        if self._call is not None:
            return self._read_call(self._call, events)
        if self._is_after_call:
            return self._read_end_mark()
        return self._read_prose(events)

    def _read_prose(self, events: list[Event]) -> bool:
        before, mark, after = self._buffer.partition(self._begin)
        if mark:
            events += self._prose.say(before)
            self._buffer, self._call = after, self._reader()
            return True
        shown = len(before) - held(before, self._begin)
        events += self._prose.say(before[:shown])
        self._buffer = before[shown:]
        return False

    def _read_call(self, call: CallReader, events: list[Event]) -> bool:
        had_begun = call.has_begun
        told, self._buffer = call.push(self._buffer)
        if call.has_begun and not had_begun:
            self._prose.call_begins()
        events += told
        if not (call.is_over or call.is_broken):
            return False
        self._call = None
        self._is_after_call = call.has_begun
        if not call.has_begun:
            events += self._prose.say(self._begin + call.raw)
        return True

    def _read_end_mark(self) -> bool:
        rest = self._buffer.lstrip()
        if rest.startswith(self._end):
            self._buffer = rest[len(self._end) :]
        elif self._end.startswith(rest):
            return False
        self._is_after_call = False
        return True
