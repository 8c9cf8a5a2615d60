"""One answer, from bytes to arrivals of output."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from client.record import Arrival, Failure
from client.sse import EventDecoder
from client.wire import StreamEvent, error_text

DONE = "[DONE]"
MESSAGE_CHARS = 200
OK = 200


class RequestFailed(Exception):
    """The request cannot succeed any more."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        line = " ".join(message.split())[:MESSAGE_CHARS]
        self.failure = Failure(kind, "".join(c if c.isprintable() else "?" for c in line))


class AnswerReader:
    """What has been read of one answer so far; a `Receiver`, which raises RequestFailed as soon as all is lost.

    Reading goes on after [DONE]: only an answer read to its end leaves the connection usable for the next request.
    """

    def __init__(self) -> None:
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.sent_at: float | None = None
        self.done_at: float | None = None
        self._arrivals: list[Arrival] = []
        self._events = 0
        self._ended = False
        self._decoder = EventDecoder()
        self._status = OK
        self._headers: Mapping[str, str] = {}
        self._error_body = b""
        self._last_at = 0.0

    def sent(self, at: float) -> None:
        """See `Receiver`."""
        if self.sent_at is None:
            self.sent_at = at

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """See `Receiver`."""
        self._status, self._headers = status, headers

    def body(self, at: float, data: bytes) -> None:
        """See `Receiver`."""
        self._last_at = at
        if self._status != OK:
            self._error_body += data
            return
        for event in self._decoder.feed(data):
            self._take(at, event)

    def close(self) -> None:
        """The answer is over. Raises RequestFailed unless it ended as it should and brought a token."""
        if self._status != OK:
            raise RequestFailed(f"http_{self._status}", error_text(self._error_body))
        for event in self._decoder.close():
            self._take(self._last_at, event)
        if not self._events:
            content_type = self._headers.get("content-type", "none")
            raise RequestFailed("not_streamed", f"the answer holds no event (content-type: {content_type})")
        if not self._ended:
            raise RequestFailed("truncated", "the stream ended without a finish reason or [DONE]")
        if not self._arrivals:
            raise RequestFailed("empty", "the stream brought no token")

    def output(self) -> tuple[Arrival, ...]:
        """The arrivals that stand for tokens.

        Where the server counts in every event, all; else those with text, as the usage at the end came with no token.
        """
        with_text = tuple(arrival for arrival in self._arrivals if arrival.text)
        continuous = bool(self._arrivals) and self._arrivals[0].counted is not None
        return tuple(self._arrivals) if continuous else with_text

    def _take(self, at: float, data: str) -> None:
        self._events += 1
        if data == DONE:
            self._ended, self.done_at = True, at
            return
        try:
            event = StreamEvent.model_validate_json(data)
        except ValidationError as error:
            raise RequestFailed("bad_event", f"{error.errors()[0]['msg']} in {data}") from error
        if event.error_message is not None:
            raise RequestFailed("stream_error", event.error_message)
        self._ended |= event.finishes
        counted = self._take_usage(event)
        if event.text or counted is not None:
            self._arrivals.append(Arrival(at, event.text, counted))

    def _take_usage(self, event: StreamEvent) -> int | None:
        """Returns the running count of output tokens if this event raised it."""
        if event.usage is None:
            return None
        if event.usage.prompt_tokens is not None:
            self.prompt_tokens = event.usage.prompt_tokens
        before, now = self.completion_tokens or 0, event.usage.completion_tokens or 0
        if now <= before:
            return None
        self.completion_tokens = now
        return now
