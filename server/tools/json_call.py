"""Reads one call, a JSON object with a name and arguments, while it is being written."""

from __future__ import annotations

from enum import Enum, auto

from pydantic_core import from_json

from server.tools.events import Arguments, CallBegins, Event

_ARGUMENTS = ("arguments", "parameters")
_BLANKS = " \t\r\n"


class _State(Enum):
    BEFORE = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    DONE = auto()
    BROKEN = auto()


class _NoCall(Exception):
    """The text is not a call, or goes on as none could."""


class JsonCall:
    """Push text until `is_over` or `is_broken`. Arguments come out as they are written, once the name is known.

    `raw`: all that was read so far.
    """

    def __init__(self) -> None:
        self.raw = ""
        self._state = _State.BEFORE
        self._key = ""
        self._value = ""
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._name: str | None = None
        self._early: str | None = None  # arguments that were written before the name
        self._has_arguments = False

    @property
    def is_over(self) -> bool:
        """Whether the object is complete."""
        return self._state is _State.DONE

    @property
    def is_broken(self) -> bool:
        """Whether the text cannot be a call, or not go on as one."""
        return self._state is _State.BROKEN

    @property
    def has_begun(self) -> bool:
        """Whether a name was found, and so told."""
        return self._name is not None

    def push(self, text: str) -> tuple[list[Event], str]:
        """What `text` makes certain, and what of it follows the object or its break."""
        events: list[Event] = []
        for number, character in enumerate(text):
            self.raw += character
            try:
                self._read(character, events)
                if self.is_over:
                    self._finish(events)
            except _NoCall:
                self._state = _State.BROKEN
            if self.is_over or self.is_broken:
                return _joined(events), text[number + 1 :]
        return _joined(events), ""

    def _read(self, character: str, events: list[Event]) -> None:
        if self._in_string:
            self._read_in_string(character, events)
        elif self._state is _State.BEFORE:
            self._expect(character, "{", _State.KEY)
        elif self._state is _State.KEY:
            self._read_key(character)
        elif self._state is _State.COLON:
            self._expect(character, ":", _State.VALUE)
        elif self._state is _State.VALUE:
            self._read_value(character, events)

    def _expect(self, character: str, wanted: str, then: _State) -> None:
        if character == wanted:
            self._state, self._value, self._depth = then, "", 0
        elif character not in _BLANKS:
            raise _NoCall

    def _read_key(self, character: str) -> None:
        if character == '"':
            self._in_string, self._key = True, ""
        elif character == "}":
            self._state = _State.DONE
        elif character not in _BLANKS and character != ",":
            raise _NoCall

    def _read_in_string(self, character: str, events: list[Event]) -> None:
        ends = character == '"' and not self._is_escaped
        self._is_escaped = character == "\\" and not self._is_escaped
        self._in_string = not ends
        if self._state is _State.VALUE:
            self._add(character, events)
            if ends and self._depth == 0:
                self._close_value(events)
        elif ends:
            self._state = _State.COLON
        else:
            self._key += character

    def _read_value(self, character: str, events: list[Event]) -> None:
        if not self._value and character in _BLANKS:
            return
        if self._depth == 0 and character in ",}" and self._value:  # after a number, true, false or null
            self._close_value(events)
            self._read_key(character)
            return
        self._in_string = character == '"'
        self._depth += (character in "{[") - (character in "}]")
        self._add(character, events)
        if self._depth == 0 and character in "}]":
            self._close_value(events)

    def _add(self, character: str, events: list[Event]) -> None:
        self._value += character
        if self._streams:
            events.append(Arguments(character))

    @property
    def _streams(self) -> bool:
        return self._key in _ARGUMENTS and self._name is not None and self._value.startswith("{")

    def _close_value(self, events: list[Event]) -> None:
        streamed = self._streams
        self._state = _State.KEY
        if self._key == "name":
            self._begin(self._parsed(), events)
        elif self._key in _ARGUMENTS and not self._has_arguments:
            self._has_arguments = True
            if not streamed:
                self._tell(self._as_object(), events)

    def _begin(self, name: object, events: list[Event]) -> None:
        if not isinstance(name, str) or not name or self._name is not None:
            raise _NoCall
        self._name = name
        events.append(CallBegins(name))
        if self._early is not None:
            events.append(Arguments(self._early))

    def _tell(self, arguments: str, events: list[Event]) -> None:
        if self._name is None:
            self._early = arguments
        else:
            events.append(Arguments(arguments))

    def _as_object(self) -> str:
        """The arguments as text of an object; some models write them as a string, or null for none."""
        value = self._parsed()
        if isinstance(value, dict):
            return self._value
        if value is None:
            return "{}"
        if not isinstance(value, str):
            raise _NoCall
        return value

    def _parsed(self) -> object:
        try:
            parsed: object = from_json(self._value)
        except ValueError:
            raise _NoCall from None
        return parsed

    def _finish(self, events: list[Event]) -> None:
        if self._name is None:
            raise _NoCall
        if not self._has_arguments:
            events.append(Arguments("{}"))


def _joined(events: list[Event]) -> list[Event]:
    """The same with neighbouring pieces of arguments as one."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, Arguments) and isinstance(last, Arguments):
            joined[-1] = Arguments(last.text + event.text)
        else:
            joined.append(event)
    return joined
