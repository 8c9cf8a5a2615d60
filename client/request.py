"""One streamed request, from bytes on the wire to a record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
from pydantic import ValidationError

from client.pool import ConnectionPool
from client.record import Arrival, Failure, RequestRecord
from client.sse import EventDecoder
from client.wire import StreamEvent, error_text

Clock = Callable[[], float]

MESSAGE_CHARS = 200
DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is ready to go: its body was rendered before the clock started."""

    request_id: str
    body: bytes
    prompt_len: int


class RequestFailed(Exception):
    """The request cannot succeed any more."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        line = " ".join(message.split())[:MESSAGE_CHARS]
        self.failure = Failure(kind, "".join(c if c.isprintable() else "?" for c in line))


@dataclass(slots=True)
class _Reading:
    """What has been read of one stream so far."""

    arrivals: list[Arrival] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    events: int = 0
    ended: bool = False
    done_at: float | None = None

    def take(self, at: float, data: str) -> None:
        """Adds one event. Raises RequestFailed if it is no JSON or reports an error."""
        self.events += 1
        if data == DONE:
            self.ended, self.done_at = True, at
            return
        try:
            event = StreamEvent.model_validate_json(data)
        except ValidationError as error:
            raise RequestFailed("bad_event", f"{error.errors()[0]['msg']} in {data}") from error
        if event.error_message is not None:
            raise RequestFailed("stream_error", event.error_message)
        self.ended |= event.finishes
        counted = self._take_usage(event)
        if event.text or counted is not None:
            self.arrivals.append(Arrival(at, event.text, counted))

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

    def output(self) -> tuple[Arrival, ...]:
        """The arrivals that stand for tokens.

        Where the server counts in every event, all; else those with text, as the usage at the end came with no token.
        """
        with_text = tuple(arrival for arrival in self.arrivals if arrival.text)
        continuous = bool(self.arrivals) and self.arrivals[0].counted is not None
        return tuple(self.arrivals) if continuous else with_text

    def check_complete(self, response: httpx.Response) -> None:
        """Raises RequestFailed unless the stream ended as it should and brought a token."""
        if not self.events:
            content_type = response.headers.get("content-type", "none")
            raise RequestFailed("not_streamed", f"the answer holds no event (content-type: {content_type})")
        if not self.ended:
            raise RequestFailed("truncated", "the stream ended without a finish reason or [DONE]")
        if not self.arrivals:
            raise RequestFailed("empty", "the stream brought no token")


async def stream_request(
    pool: ConnectionPool, url: str, call: Call, *, due: float, clock: Clock, timeout_s: float
) -> RequestRecord:
    """Sends `call` once and reads its stream to the end. Whatever goes wrong is in the record, never raised."""
    reading = _Reading()
    failure = None
    sent = clock()
    try:
        async with asyncio.timeout(timeout_s):
            await _read(pool, url, call, clock, reading)
    except RequestFailed as error:
        failure = error.failure
    except TimeoutError:
        failure = Failure("timeout", f"no complete answer within {timeout_s:g} s")
    except httpx.HTTPError as error:
        failure = Failure(_transport_kind(error), str(error) or type(error).__name__)
    return RequestRecord(
        request_id=call.request_id,
        prompt_len=call.prompt_len,
        due=due,
        sent=sent,
        finished=clock() if reading.done_at is None else reading.done_at,
        arrivals=reading.output(),
        prompt_tokens=reading.prompt_tokens,
        completion_tokens=reading.completion_tokens,
        failure=failure,
    )


async def _read(pool: ConnectionPool, url: str, call: Call, clock: Clock, reading: _Reading) -> None:
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream", "X-Request-Id": call.request_id}
    with pool.lend() as client:
        async with client.stream("POST", url, content=call.body, headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                raise RequestFailed(f"http_{response.status_code}", error_text(await response.aread()))
            decoder = EventDecoder()
            # Read on after [DONE]: only an answer read to its end leaves the connection usable for the next request.
            async for chunk in response.aiter_bytes():
                at = clock()
                for data in decoder.feed(chunk):
                    reading.take(at, data)
            for data in decoder.close():
                reading.take(clock(), data)
            reading.check_complete(response)


def _transport_kind(error: httpx.HTTPError) -> str:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return "connect"
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            return "disconnected"
        case _:
            return "transport"
