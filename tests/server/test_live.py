"""What only a socket shows: when bytes come, who hangs up, who does not read, what h11 lets through."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from server.settings import Pace
from server.uvicorn_server import HTTPProtocol
from tests.server.stack import CHAT_HI, CHAT_HI_TEXT, Live, Model, Stack, eventually, sse, texts

StackFactory = Callable[..., Stack]
Serve = Callable[[Stack], Live]
LONG = 3000


@pytest.fixture
def endless(stack: StackFactory, model: Model) -> Stack:
    """A stack whose model talks for longer than any test waits."""
    model.step_seconds = 0.002
    for text in ("hi", "a", "b", CHAT_HI_TEXT):
        model.says("x" * LONG, to=text)
    return stack(model, engine={"max_model_len": 4000, "num_pages": 20_001})


def test_headers_come_before_the_first_token(stack: StackFactory, model: Model, live: Serve) -> None:
    model.gate = threading.Semaphore(0)
    server = live(stack(model.says("abc")))
    body = {"prompt": "hi", "stream": True}
    headers = {"accept-encoding": "gzip, br"}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers) as response:
        assert response.status_code == 200  # and the model still waits for its permit
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in response.headers
        assert "content-length" not in response.headers
        model.gate.release(100)
        events = sse(response.read().decode())
    assert "".join(event["choices"][0]["text"] for event in events) == "abc"


def test_tokens_come_one_by_one(stack: StackFactory, model: Model, live: Serve) -> None:
    model.gate = threading.Semaphore(0)
    server = live(stack(model.says("abc")))
    with httpx.stream("POST", f"{server.url}/v1/completions", json={"prompt": "hi", "stream": True}) as response:
        lines = response.iter_lines()
        for letter in "abc":
            model.gate.release()
            line = next(line for line in lines if line)
            assert json.loads(line.removeprefix("data: "))["choices"][0]["text"] == letter
        model.gate.release(10)
        assert [line for line in lines if line][-1] == "data: [DONE]"


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2}),
    ("/v1/chat/completions", {"messages": CHAT_HI, "n": 4}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("number", "how"), [(0, "fin"), (0, "rst"), (0, "half-close"), (1, "fin"), (2, "fin")])
def test_work_ends_when_the_client_leaves(endless: Stack, live: Serve, number: int, stream: bool, how: str) -> None:
    path, body = REQUESTS[number]
    server = live(endless)
    content = json.dumps(body | {"max_tokens": LONG, "stream": stream}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(head.encode() + content)
    assert eventually(lambda: endless.engine.stats().num_running > 0)
    if how == "rst":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    if how == "half-close":
        client.shutdown(socket.SHUT_WR)
    else:
        client.close()
    assert eventually(server.is_idle)
    choices = len(body.get("prompt", "")) * 2 if isinstance(body.get("prompt"), list) else body.get("n", 1)
    metrics = httpx.get(f"{server.url}/metrics").text
    assert f'finished_reason="abort",model_name="tiny"}} {choices}.0' in metrics
    assert endless.model.num_steps < LONG / 10
    client.close()


def test_a_client_that_leaves_while_its_prompt_is_read(
    endless: Stack, live: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, may_go_on = threading.Event(), threading.Event()
    encode = endless.services.tokenizer.encode

    def slow(text: str, *, add_special_tokens: bool = True) -> list[int]:
        reading.set()
        may_go_on.wait(5)
        return encode(text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(endless.services.tokenizer, "encode", slow)
    server = live(endless)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "x" * 3000}, timeout=0.2)
    assert reading.is_set()
    assert httpx.get(f"{server.url}/health").status_code == 200
    time.sleep(0.2)
    may_go_on.set()
    time.sleep(0.2)
    assert server.is_idle()
    assert endless.model.num_steps == 0


def test_reading_a_large_prompt_stops_nobody(endless: Stack, live: Serve) -> None:
    server = live(endless)
    gaps: list[float] = []
    done = threading.Event()

    def probe() -> None:
        with httpx.Client() as client:
            while not done.is_set():
                began = time.monotonic()
                client.get(f"{server.url}/health")
                gaps.append(time.monotonic() - began)

    thread = threading.Thread(target=probe)
    thread.start()
    for prompt in ("word " * 600_000, "😀" * 300_000, [1] * 1_000_000, "x" * 40_000):
        assert httpx.post(f"{server.url}/v1/completions", json={"prompt": prompt}, timeout=20).status_code == 400
    done.set()
    thread.join()
    assert sorted(gaps)[-3] < 0.5, "each of four prompts would hold up a probe; a busy machine delays one or two"


def test_a_reader_that_does_not_read_gets_its_tokens_together(stack: StackFactory, model: Model, live: Serve) -> None:
    length, n = 900, 8
    server = live(stack(model.says("x" * length), engine={"max_model_len": length + 1, "num_pages": 10_001}))
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.sock = client
    body = {"prompt": "hi", "stream": True, "max_tokens": length, "logprobs": 20, "n": n}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    assert eventually(lambda: model.num_steps >= length, 20), "a reader must not hold up the engine"
    events = sse(connection.getresponse().read().decode())
    connection.close()
    assert len(events) < 0.9 * length * n
    assert texts(events) == dict.fromkeys(range(n), "x" * length)
    for choice in (choice for event in events for choice in event["choices"]):
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_one_stream_fails_and_its_neighbour_goes_on(stack: StackFactory, model: Model, live: Serve) -> None:
    model.step_seconds = 0.005
    model.says("abcdefgh", to="good").says("abcdefgh", to="bad").failing.add("bad")
    server = live(stack(model, engine={"max_num_seqs": 1}))
    answers: dict[str, str] = {}

    def ask(prompt: str) -> None:
        body = {"prompt": prompt, "stream": True}
        answers[prompt] = httpx.post(f"{server.url}/v1/completions", json=body).text

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in ("bad", "good")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert "error" in sse(answers["bad"])[-1]
    assert sse(answers["good"])[-1]["choices"][0]["finish_reason"] == "stop"


def talk(server: Live, data: bytes, seconds: float = 5.0) -> bytes:
    """All that the server answers to `data` until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as client:
        client.sendall(data)
        received = b""
        with contextlib.suppress(ConnectionResetError):  # it does not read what it refused
            while chunk := client.recv(65536):
                received += chunk
        return received


def test_giant_headers_are_refused(stack: StackFactory, live: Serve) -> None:
    server = live(stack())
    many = b"".join(b"X-%d: y\r\n" % number for number in range(20_000))
    for headers in (b"X: " + b"x" * 200_000, many):
        answer = talk(server, b"GET /health HTTP/1.1\r\n" + headers)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_what_is_no_http_is_told_so_in_the_same_shape(stack: StackFactory, live: Serve) -> None:
    head, body = talk(live(stack()), b"NONSENSE\r\n\r\n").split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])["error"]["code"] == "invalid_http"


@pytest.mark.parametrize("request_line", ["GET /health", "GET /nothing", "POST /health", "POST /v1/completions"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_body_that_is_no_http_gets_one_answer_and_no_traceback(
    stack: StackFactory, live: Serve, caplog: pytest.LogCaptureFixture, request_line: str, is_late: bool
) -> None:
    """Whether the body is broken before the request is answered, while it is, or when it has been."""
    server = live(stack())
    head = f"{request_line} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
        if is_late:
            client.sendall(head.encode())
            time.sleep(0.05)
            client.sendall(b"no length\r\n")
        else:
            client.sendall(head.encode() + b"no length\r\n")
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := client.recv(65536):
                answer += chunk
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b'"invalid_http"' in answer or (is_late and "completions" not in request_line)
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_a_body_that_is_too_large_is_not_read(stack: StackFactory, live: Serve) -> None:
    server = live(stack(api_keys=("k",), max_body_bytes=1000))
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\n"
        b"Content-Length: 10000000000\r\n\r\n"
    )
    assert talk(server, head + b"x" * 500).startswith(b"HTTP/1.1 413")


def test_a_head_that_does_not_end_is_given_up(
    stack: StackFactory, live: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HTTPProtocol, "head_seconds", 0.2)
    server = live(stack())
    assert talk(server, b"") == b""
    assert talk(server, b"GET /health HTTP/1.1\r\nX: y") == b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /hea")
        assert client.recv(65536) == b""


def test_a_connection_is_kept_for_the_next_request(
    stack: StackFactory, live: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HTTPProtocol, "head_seconds", 0.2)
    server = live(stack())
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=2)
    for pause in (0.5, 0):
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b""
        time.sleep(pause)
    connection.close()


def test_a_stream_without_news_says_that_it_lives(stack: StackFactory, model: Model, live: Serve) -> None:
    model.gate = threading.Semaphore(0)
    server = live(stack(model.says("abc"), pace=Pace(keep_alive=0.05)))
    with httpx.stream("POST", f"{server.url}/v1/completions", json={"prompt": "hi", "stream": True}) as response:
        lines = (line for line in response.iter_lines() if line)
        assert [next(lines) for _ in range(3)] == [": keep-alive"] * 3
        model.gate.release(100)
        events = [line for line in lines if line != ": keep-alive"]
    assert [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in events[:3]] == ["a", "b", "c"]
    assert events[-1] == "data: [DONE]"


def test_a_reader_who_takes_nothing_is_given_up(stack: StackFactory, model: Model, live: Serve) -> None:
    model.step_seconds = 0.001
    endless = stack(
        model.says("x" * LONG),
        engine={"max_model_len": LONG + 1, "num_pages": 60_001},
        pace=Pace(keep_alive=0.1, stall=0.3),
    )
    server = live(endless)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    body = json.dumps({"prompt": "hi", "stream": True, "max_tokens": LONG, "logprobs": 20, "n": 8}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    client.sendall(head.encode() + b"\r\n\r\n" + body)
    assert eventually(lambda: endless.engine.stats().num_running == 8)
    assert eventually(server.is_idle, 10)
    assert model.num_steps < LONG
    client.close()


def test_a_body_that_does_not_end_is_given_up(stack: StackFactory, live: Serve) -> None:
    server = live(stack(body_seconds=0.2))
    for length in (b"Content-Length: 100", b"Transfer-Encoding: chunked"):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + length
        assert talk(server, head + b"\r\n\r\n5\r\n{").startswith(b"HTTP/1.1 408")
