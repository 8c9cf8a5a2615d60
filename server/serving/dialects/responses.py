"""POST /v1/responses: how deltas are written. An answer is a list of items: a message, or a call."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.choice_text import Piece
from server.errors import ApiError
from server.protocol.responses import ChatTokenLogprob, Usage
from server.serving.choice import Delta, End
from server.serving.dialects.dialect import Json, event
from server.serving.logprobs import LogprobWriter
from server.tools.events import CallBegins, Event, Said
from server.tools.reader import Call, CallReader


@dataclass(slots=True)
class Item:
    """A message (`call` None) or a call, as far as it was written."""

    call: Call | None = None
    text: str = ""
    logprobs: list[ChatTokenLogprob] = field(default_factory=list)
    code: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def id(self) -> str:
        """Its name."""
        return f"{'msg' if self.call is None else 'fc'}_{self.code}"

    @property
    def part(self) -> dict[str, Any]:
        """The text of a message."""
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def as_json(self, status: str, *, is_new: bool = False) -> dict[str, Any]:
        """As clients see it; `is_new`: nothing of it was written."""
        if self.call is None:
            content = [] if is_new else [self.part]
            return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content}
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self.call.id,
            "name": self.call.name,
            "arguments": "" if is_new else self.call.arguments,
            "status": status,
        }


class ResponsesDialect:
    """Follows the one choice of an answer.

    `frame`: what a response holds beside its output. `keep` is given the finished response.
    `logprobs` None: not asked for.
    """

    def __init__(
        self,
        frame: Mapping[str, Any],
        reader: CallReader,
        logprobs: LogprobWriter | None,
        keep: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._frame = frame
        self._reader = reader
        self._logprobs = logprobs
        self._keep = keep
        self._items: list[Item] = []
        self._open: Item | None = None
        self._end: End | None = None
        self._number = 0

    def answer(self, choices: Sequence[Delta], usage: Usage) -> Json:
        """See `Dialect`."""
        (whole,) = choices
        self._take_in(whole)
        return self._finished(usage)

    def opening(self, _: Usage) -> bytes:
        """See `Dialect`."""
        response = self._response("in_progress", None)
        return self._told("response.created", response=response) + self._told("response.in_progress", response=response)

    def told(self, delta: Delta, _: Usage) -> bytes:
        """See `Dialect`."""
        return b"".join(self._take_in(delta))

    def closing(self, usage: Usage) -> bytes:
        """See `Dialect`."""
        closed = self._close()
        response = self._finished(usage)
        return b"".join(closed) + self._told(f"response.{response['status']}", response=response)

    def failure(self, error: ApiError) -> bytes:
        """See `Dialect`."""
        closed = b"".join(self._close())
        wrong = {"code": "invalid_prompt" if error.status < 500 else "server_error", "message": error.message}
        failed = self._response("failed", None) | {"error": wrong}
        return closed + self._told("response.failed", response=failed)

    def _take_in(self, delta: Delta) -> list[bytes]:
        """The events of `delta`."""
        self._end = delta.end
        number = len(self._reader.calls)
        told: list[bytes] = []
        pieces: Sequence[Piece] = delta.pieces
        for part in self._reader.read(delta.text, is_end=delta.end is not None):
            if isinstance(part, CallBegins):
                told += self._begin(Item(self._reader.calls[number]))
                number += 1
            elif isinstance(part, Said) and (self._open is None or self._open.call is not None):
                told += self._begin(Item())
            told += self._more(part, pieces)
            pieces = () if isinstance(part, Said) else pieces
        return told

    def _more(self, part: Event, pieces: Sequence[Piece]) -> list[bytes]:
        if isinstance(part, CallBegins):
            return []
        assert self._open is not None, "an item is open"
        if not isinstance(part, Said):
            return [self._of_item("response.function_call_arguments.delta", delta=part.text)]
        logprobs = [] if self._logprobs is None else self._logprobs.chat(pieces)["content"]
        self._open.text += part.text
        self._open.logprobs += logprobs
        return [self._of_item("response.output_text.delta", content_index=0, delta=part.text, logprobs=logprobs)]

    def _begin(self, item: Item) -> list[bytes]:
        told = self._close()
        self._items.append(item)
        self._open = item
        new = item.as_json("in_progress", is_new=True)
        told.append(self._told("response.output_item.added", output_index=len(self._items) - 1, item=new))
        if item.call is None:
            told.append(self._of_item("response.content_part.added", content_index=0, part=item.part))
        return told

    def _close(self) -> list[bytes]:
        item, status = self._open, self._status
        if item is None:
            return []
        if item.call is None:
            text = {"content_index": 0, "text": item.text, "logprobs": item.logprobs}
            told = [
                self._of_item("response.output_text.done", **text),
                self._of_item("response.content_part.done", content_index=0, part=item.part),
            ]
        else:
            call = {"name": item.call.name, "arguments": item.call.arguments}
            told = [self._of_item("response.function_call_arguments.done", **call)]
        index = len(self._items) - 1
        told.append(self._told("response.output_item.done", output_index=index, item=item.as_json(status)))
        self._open = None
        return told

    @property
    def _status(self) -> str:
        return "incomplete" if self._end is not None and self._end.reason == "length" else "completed"

    def _finished(self, usage: Usage) -> dict[str, Any]:
        response = self._response(self._status, usage)
        if response["status"] == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        self._keep(response)
        return response

    def _response(self, status: str, usage: Usage | None) -> dict[str, Any]:
        last = "completed" if status == "completed" else "incomplete"
        items = [item.as_json("completed" if item is not self._items[-1] else last) for item in self._items]
        return {**self._frame, "status": status, "output": items, "usage": None if usage is None else _usage(usage)}

    def _of_item(self, kind: str, **data: Any) -> bytes:
        return self._told(kind, item_id=self._items[-1].id, output_index=len(self._items) - 1, **data)

    def _told(self, kind: str, **data: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **data}, kind)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
