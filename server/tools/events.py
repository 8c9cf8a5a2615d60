"""What a model's text turns out to be: text for the reader, and calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from server.protocol.tools import Tool


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A call of the function `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of the call that began last: joined, they are the text of a JSON object."""

    text: str


Event = Said | CallBegins | Arguments


class ToolParser(Protocol):
    """Reads one choice's text as it comes. What it gives does not depend on how the text was cut into pieces."""

    def push(self, text: str) -> list[Event]:
        """What `text` makes certain."""

    def end(self) -> list[Event]:
        """What was held back. Call it once, at the end; what never became a call is text."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How one call is written: `begin`, an object with `name` and `arguments_key`, `end`."""

    begin: str
    end: str
    arguments_key: str
    separator: str


@dataclass(frozen=True, slots=True)
class ParserFamily:
    """What a file in `parsers/` exposes.

    `parser`: a new parser for one choice, which knows the tools on offer. `form`: how calls are written when one must
    come; None: as the default family writes them. `marks`: special tokens that the parser has to see.
    """

    parser: Callable[[Sequence[Tool]], ToolParser]
    form: CallForm | None = None
    marks: tuple[str, ...] = ()
