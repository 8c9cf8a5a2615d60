"""One streamed request, from a body that is ready to a record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from client.connection import Clock, Disconnected
from client.pool import Address, CannotConnect, ConnectionPool
from client.reading import AnswerReader, RequestFailed
from client.record import Failure, RequestRecord


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is ready to go: its body was rendered before the clock started.

    `expects` is what a right answer contains. `then` makes the next request of a conversation from this one's answer,
    and `pause` is how many seconds after that answer this one is due.
    """

    request_id: str
    body: bytes
    prompt_len: int
    expects: str | None = None
    pause: float = 0.0
    then: Callable[[str], Call] | None = None


async def stream_request(
    pool: ConnectionPool, address: Address, call: Call, *, due: float | None, clock: Clock, timeout_s: float
) -> RequestRecord:
    """Sends `call` once and reads its stream to the end. Whatever goes wrong is in the record, never raised.

    Without `due` it is due when it is sent, so that nobody's latency has in it what the client does before.
    """
    reader = AnswerReader()
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream", "X-Request-Id": call.request_id}
    failure = None
    began = clock()
    try:
        async with asyncio.timeout(timeout_s):
            await pool.request("POST", address, headers, call.body, reader, clock)
        reader.close()
    except RequestFailed as error:
        failure = error.failure
    except TimeoutError:
        failure = Failure("timeout", f"no complete answer within {timeout_s:g} s")
    except CannotConnect as error:
        failure = Failure("connect", str(error))
    except Disconnected as error:
        failure = Failure("disconnected", str(error))
    sent = began if reader.sent_at is None else reader.sent_at
    return RequestRecord(
        request_id=call.request_id,
        prompt_len=call.prompt_len,
        due=sent if due is None else due,
        sent=sent,
        finished=clock() if reader.done_at is None else reader.done_at,
        arrivals=reader.output(),
        prompt_tokens=reader.prompt_tokens,
        completion_tokens=reader.completion_tokens,
        failure=failure,
        expects=call.expects,
    )
