"""What `respond` needs of a dialect, and how server-sent events are framed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic_core import to_json

from server.errors import ApiError
from server.protocol.responses import Usage
from server.serving.choice import Delta

Json = Mapping[str, Any]

DONE = b"data: [DONE]\n\n"


class Dialect(Protocol):
    """Writes one answer, whole or as a stream: `opening`, then `told` for each delta, then `closing` or `failure`."""

    def answer(self, choices: Sequence[Delta], usage: Usage) -> Json:
        """The whole answer; each choice is one delta."""

    def opening(self, usage: Usage, /) -> bytes:
        """What comes before anything is known."""

    def told(self, delta: Delta, usage: Usage) -> bytes:
        """The events that tell of `delta`; `usage` is that so far."""

    def closing(self, usage: Usage) -> bytes:
        """The end of a stream in which every choice has ended."""

    def failure(self, error: ApiError) -> bytes:
        """The end of a stream that cannot go on."""


def event(data: Json, name: str | None = None) -> bytes:
    """One event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + to_json(data) + b"\n\n"
