"""The texts of all choices of an answer, read for calls."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from server.tools.events import Arguments, CallBegins, Event, Said, ToolParser


@dataclass(slots=True)
class Call:
    """A call as far as it was read."""

    name: str
    arguments: str = ""
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


class CallReader:
    """Turns the text of one choice into events. `make_parser` None: all of it is text.

    `parallel` False: what follows the first call is dropped.
    """

    def __init__(self, make_parser: Callable[[], ToolParser] | None, *, parallel: bool = True) -> None:
        self._parser = None if make_parser is None else make_parser()
        self._parallel = parallel
        self.calls: list[Call] = []
        self._is_deaf = False

    def read(self, text: str, *, is_end: bool) -> list[Event]:
        """The events in `text`, which follows what was read before; `is_end`: nothing follows it."""
        if self._parser is None:
            return [Said(text)] if text else []
        events = self._parser.push(text)
        if is_end:
            events += self._parser.end()
        return [event for event in events if self._notes(event)]

    def _notes(self, event: Event) -> bool:
        """Whether `event` counts; notes calls."""
        if isinstance(event, CallBegins):
            self._is_deaf = self._is_deaf or (bool(self.calls) and not self._parallel)
            if not self._is_deaf:
                self.calls.append(Call(event.name))
        elif isinstance(event, Arguments) and not self._is_deaf:
            self.calls[-1].arguments += event.text
        elif self.calls and not self._parallel:
            self._is_deaf = True
        return not self._is_deaf
