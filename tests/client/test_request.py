"""One request against a scripted server: what its record says, whatever the server does."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from client.connection import Clock
from client.pool import Address, ConnectionPool
from client.reading import AnswerReader
from client.record import RequestRecord
from client.request import Call, stream_request

Serve = Callable[..., Any]


def request(url: str, timeout_s: float = 30.0, clock: Clock | None = None, due: float | None = 0.0) -> RequestRecord:
    async def go() -> RequestRecord:
        started = time.perf_counter()
        async with ConnectionPool() as pool:
            return await stream_request(
                pool,
                Address.of(f"{url}/v1/completions"),
                Call("id-1", b"{}", prompt_len=8),
                due=due,
                clock=clock or (lambda: time.perf_counter() - started),
                timeout_s=timeout_s,
            )

    return asyncio.run(go())


def answer(serve: Serve, *steps: Any, timeout_s: float = 30.0) -> RequestRecord:
    return request(serve(lambda n: list(steps)).url, timeout_s)


def failure(record: RequestRecord) -> str:
    assert record.failure is not None
    return str(record.failure)


def test_a_completion(serve: Serve, wire: SimpleNamespace) -> None:
    record = answer(serve, wire.text("a"), wire.text("b", "length"), wire.usage(8, 2), wire.done)
    assert record.failure is None
    assert (record.text, record.prompt_tokens, record.completion_tokens) == ("ab", 8, 2)
    assert [arrival.text for arrival in record.arrivals] == ["a", "b"]
    assert 0 <= record.sent <= record.arrivals[0].at <= record.finished


@pytest.mark.parametrize("due", [0.0, None])
def test_what_is_not_due_at_a_time_is_due_when_it_is_sent(
    serve: Serve, wire: SimpleNamespace, due: float | None
) -> None:
    ticks = itertools.count(1)
    server = serve(lambda n: [wire.text("a", "stop"), wire.usage(8, 1), wire.done])
    record = request(server.url, clock=lambda: next(ticks), due=due)
    assert record.failure is None
    assert record.sent >= 1
    assert record.due == (record.sent if due is None else due)


def test_a_request_that_waits_for_its_connection_is_sent_when_it_asks_for_one() -> None:
    reader = AnswerReader()
    reader.sent(1.0)
    reader.sent(2.0)
    assert reader.sent_at == 1.0


def test_the_role_chunk_is_no_token(serve: Serve, wire: SimpleNamespace) -> None:
    role, empty = wire.delta(role="assistant", content=""), wire.delta(content="")
    record = answer(serve, role, 0.3, empty, wire.delta(content="a"), wire.delta("stop"), wire.usage(8, 1), wire.done)
    assert record.failure is None
    assert len(record.arrivals) == 1
    assert record.arrivals[0].at >= 0.29


def test_the_end_is_done_not_the_end_of_the_bytes(serve: Serve, wire: SimpleNamespace) -> None:
    ticks = itertools.count()
    server = serve(lambda n: [wire.text("a", "stop"), wire.done, 0.05, b": more\n\n"])
    record = request(server.url, clock=lambda: next(ticks))
    assert record.failure is None
    assert record.finished < next(ticks) - 1


def test_usage_in_the_finishing_chunk(serve: Serve, wire: SimpleNamespace) -> None:
    last = {"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"prompt_tokens": 8, "completion_tokens": 5}}
    record = answer(serve, wire.text("a"), wire.text("b"), wire.event(last))
    assert record.completion_tokens == 5
    assert [arrival.text for arrival in record.arrivals] == ["a", "b"]


def test_a_running_count_marks_tokens_without_text(serve: Serve, wire: SimpleNamespace) -> None:
    def chunk(text: str, tokens: int) -> bytes:
        counts = {"prompt_tokens": 8, "completion_tokens": tokens}
        encoded: bytes = wire.event({"choices": [{"text": text}], "usage": counts})
        return encoded

    record = answer(serve, chunk("", 0), chunk("", 1), chunk("", 2), chunk("ab", 3), chunk("", 3), wire.done)
    assert [(arrival.text, arrival.counted) for arrival in record.arrivals] == [("", 1), ("", 2), ("ab", 3)]


def test_no_usage_at_all(serve: Serve, wire: SimpleNamespace) -> None:
    record = answer(serve, b": ping\n\n", wire.event({"choices": [{"text": "a"}], "usage": None}), wire.done)
    assert record.failure is None
    assert (record.completion_tokens, record.input_tokens) == (None, 8)


def test_tokens_without_any_text_end_with_the_usage(serve: Serve, wire: SimpleNamespace) -> None:
    record = answer(serve, wire.text("", "stop"), wire.usage(8, 1), wire.done)
    assert record.failure is None
    assert [arrival.counted for arrival in record.arrivals] == [1]


def test_an_event_cut_inside_a_character(serve: Serve, wire: SimpleNamespace) -> None:
    whole = wire.text("ä🙂")
    middle = whole.index("🙂".encode()) + 2
    record = answer(serve, whole[:middle], 0.02, whole[middle:].replace(b"\n", b"\r\n"), wire.text("b", "stop"))
    assert record.text == "ä🙂b"
    assert record.failure is None


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (JSONResponse({"error": {"message": "slow\ndown \x1b[31m"}}, 429), "http_429: slow down ?[31m"),
        (JSONResponse({"detail": "Not Found"}, 404), 'http_404: {"detail":"Not Found"}'),
        (PlainTextResponse("oops", 500), "http_500: oops"),
        (RedirectResponse("/elsewhere"), "http_307: "),
        (JSONResponse({"choices": []}), "not_streamed: the answer holds no event (content-type: application/json)"),
    ],
)
def test_answers_that_are_no_stream(serve: Serve, response: Response, expected: str) -> None:
    mock = serve(lambda n: response)
    assert failure(request(mock.url)) == expected
    assert len(mock.bodies) == 1


def test_an_error_inside_the_stream(serve: Serve, wire: SimpleNamespace) -> None:
    record = answer(serve, wire.text("a"), wire.event({"error": {"message": "engine died"}}), wire.done)
    assert failure(record) == "stream_error: engine died"
    assert record.text == "a"


def test_an_event_that_is_no_json(serve: Serve, wire: SimpleNamespace) -> None:
    assert failure(answer(serve, wire.text("a"), b"data: {oops\n\n", wire.done)).startswith("bad_event: Invalid JSON")


def test_a_stream_that_just_stops(serve: Serve, wire: SimpleNamespace) -> None:
    assert failure(answer(serve, wire.text("a"))).startswith("truncated: ")


def test_a_stream_without_tokens(serve: Serve, wire: SimpleNamespace) -> None:
    assert failure(answer(serve, wire.delta(role="assistant"), wire.delta("stop"), wire.done)).startswith("empty: ")


def test_a_server_that_never_answers(serve: Serve, wire: SimpleNamespace) -> None:
    record = answer(serve, wire.text("a"), 20.0, timeout_s=0.3)
    assert failure(record) == "timeout: no complete answer within 0.3 s"


def test_a_connection_that_breaks() -> None:
    async def go() -> RequestRecord:
        async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(break_off, "127.0.0.1", 0) as server, ConnectionPool() as pool:
            port = server.sockets[0].getsockname()[1]
            url = Address.of(f"http://127.0.0.1:{port}/")
            return await stream_request(pool, url, Call("i", b"{}", 8), due=0.0, clock=time.perf_counter, timeout_s=30)

    assert failure(asyncio.run(go())).startswith("disconnected: ")


def test_a_server_that_is_not_there(dead_url: str) -> None:
    assert failure(request(dead_url)).startswith("connect: ")
