"""POST /v1/messages: how deltas are written. An answer is a list of blocks: text, or the use of a tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json

from server.errors import ApiError
from server.protocol.responses import Usage
from server.serving.choice import Delta, End
from server.serving.dialects.dialect import Json, event
from server.tools.events import CallBegins, Event, Said
from server.tools.reader import Call, CallReader

BlockType = Literal["text", "tool_use"]

# Anthropic's API always has these keys; none of them says anything here.
_EMPTY_USAGE = {"output_tokens_details": None, "server_tool_use": None}
_EMPTY_START_USAGE = {**_EMPTY_USAGE, "cache_creation": None, "inference_geo": None, "service_tier": None}
_EMPTY_STOP = {"stop_details": None, "container": None}


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """What is known before the answer."""

    id: str
    model: str


class MessagesDialect:
    """Follows the one choice of an answer."""

    def __init__(self, facts: MessageFacts, reader: CallReader) -> None:
        self._facts = facts
        self._reader = reader
        self._end: End | None = None
        self._index = -1
        self._open: BlockType | None = None

    def answer(self, choices: Sequence[Delta], usage: Usage) -> Json:
        """See `Dialect`."""
        (whole,) = choices
        self._end = whole.end
        events = self._reader.read(whole.text, is_end=True)
        return self._message(_blocks(events, self._reader), usage) | self._stop()

    def opening(self, usage: Usage) -> bytes:
        """See `Dialect`."""
        message = self._message([], usage) | {"stop_reason": None, "stop_sequence": None, **_EMPTY_STOP}
        return _told("message_start", message=message)

    def told(self, delta: Delta, _: Usage) -> bytes:
        """See `Dialect`."""
        self._end = delta.end
        number = len(self._reader.calls)
        written = b""
        for part in self._reader.read(delta.text, is_end=delta.end is not None):
            if isinstance(part, CallBegins):
                call = self._reader.calls[number]
                number += 1
                written += self._begin(_use_of(call, {}))
            elif isinstance(part, Said):
                if self._open != "text":
                    written += self._begin(_text_block())
                written += self._more({"type": "text_delta", "text": part.text})
            else:
                written += self._more({"type": "input_json_delta", "partial_json": part.text})
        return written

    def closing(self, usage: Usage) -> bytes:
        """See `Dialect`."""
        delta = _told("message_delta", delta=self._stop(), usage=_usage(usage) | _EMPTY_USAGE)
        return self._close_block() + delta + _told("message_stop")

    def failure(self, error: ApiError) -> bytes:
        """See `Dialect`."""
        return event(error.anthropic_body, "error")

    def _message(self, content: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {
            "id": self._facts.id,
            "type": "message",
            "role": "assistant",
            "model": self._facts.model,
            "content": content,
            "usage": _usage(usage) | _EMPTY_START_USAGE,
        }

    def _stop(self) -> dict[str, Any]:
        assert self._end is not None, "the choice is complete"
        stop_string = self._end.stop_reason if isinstance(self._end.stop_reason, str) else None
        if self._end.reason == "length":
            reason = "max_tokens"
        elif self._reader.calls:
            reason = "tool_use"
        else:
            reason = "end_turn" if stop_string is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stop_string, **_EMPTY_STOP}

    def _begin(self, block: Json) -> bytes:
        closed = self._close_block()
        self._index += 1
        self._open = block["type"]
        return closed + _told("content_block_start", index=self._index, content_block=block)

    def _more(self, delta: Json) -> bytes:
        return _told("content_block_delta", index=self._index, delta=delta)

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _told("content_block_stop", index=self._index)


def _told(kind: str, **data: Any) -> bytes:
    return event({"type": kind, **data}, kind)


def _usage(usage: Usage) -> dict[str, Any]:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "output_tokens": usage["completion_tokens"],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def _blocks(events: Sequence[Event], reader: CallReader) -> list[dict[str, Any]]:
    """Text and calls in their order."""
    calls = iter(reader.calls)
    blocks: list[dict[str, Any]] = []
    for part in events:
        if isinstance(part, CallBegins):
            call = next(calls)
            blocks.append(_use_of(call, _as_object(call.arguments)))
        elif isinstance(part, Said):
            if not blocks or blocks[-1]["type"] != "text":
                blocks.append(_text_block())
            blocks[-1]["text"] += part.text
    return blocks


def _text_block() -> dict[str, Any]:
    return {"type": "text", "text": "", "citations": None}


def _use_of(call: Call, arguments: Json) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments, "caller": {"type": "direct"}}


def _as_object(arguments: str) -> dict[str, Any]:
    """Arguments as a value; of those that were cut off, what is complete."""
    try:
        value = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
