"""The end of the server: what runs finishes, newcomers are sent away, nothing waits for idle connections."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.stack import Json, Live, Model, Stack, eventually, sse

StackFactory = Callable[..., Stack]
Serve = Callable[[Stack], Live]


class Reader:
    """Reads a stream in a thread."""

    def __init__(self, server: Live) -> None:
        self.text = ""
        self._thread = threading.Thread(target=self._read, args=(server,))
        self._thread.start()
        assert eventually(lambda: server.stack.engine.stats().num_running > 0)

    def events(self) -> list[Json]:
        """All events, once the stream is over."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        return sse(self.text)

    def _read(self, server: Live) -> None:
        body = {"prompt": "hi", "stream": True, "max_tokens": 150}
        self.text = httpx.post(f"{server.url}/v1/completions", json=body, timeout=10).text


@pytest.fixture
def talking(stack: StackFactory, model: Model, live: Serve) -> Callable[..., Live]:
    """`talking(shutdown_timeout=...)`: a server whose model goes on when its gate lets it."""

    def start(**settings: float) -> Live:
        model.gate = threading.Semaphore(3)
        return live(stack(model.says("x" * 100), **settings))

    return start


def test_what_runs_finishes_and_newcomers_are_sent_away(talking: Callable[..., Live], model: Model) -> None:
    server = talking(shutdown_timeout=10)
    idle = http.client.HTTPConnection("127.0.0.1", server.port)
    idle.request("GET", "/health")
    assert idle.getresponse().read() == b""
    reader = Reader(server)
    server.end()
    assert eventually(lambda: httpx.get(f"{server.url}/health").status_code == 503)
    for stream in (False, True):
        refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a", "stream": stream})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert int(refused.headers["retry-after"]) > 0
    assert model.gate is not None
    model.gate.release(1000)
    *before, last = reader.events()
    assert "".join(event["choices"][0]["text"] for event in [*before, last]) == "x" * 100
    assert last["choices"][0]["finish_reason"] == "stop"
    began = time.monotonic()
    server.thread.join(30)
    assert not server.thread.is_alive()
    assert time.monotonic() - began < 2
    idle.close()


def test_what_takes_too_long_ends_with_an_error(talking: Callable[..., Live], model: Model) -> None:
    server = talking(shutdown_timeout=0.3)
    reader = Reader(server)
    server.end()
    time.sleep(0.4)
    assert model.gate is not None
    model.gate.release(1000)
    *before, last = reader.events()
    assert last["error"]["type"] == "server_error"
    assert all(choice["finish_reason"] is None for event in before for choice in event["choices"])
    server.thread.join(30)
    assert not server.thread.is_alive()


def test_a_second_signal_ends_now(talking: Callable[..., Live], model: Model) -> None:
    server = talking(shutdown_timeout=1000)
    reader = Reader(server)
    server.end()
    assert eventually(lambda: httpx.get(f"{server.url}/health").status_code == 503)
    server.end()
    assert model.gate is not None
    model.gate.release(1000)
    assert "error" in reader.events()[-1]
    server.thread.join(30)
    assert not server.thread.is_alive()


# Three steps, then one for each byte that comes in.
SCRIPT = """
import sys
import threading
from server.uvicorn_server import make_server
from tests.server.stack import Model, make_stack, tiny_tokenizer

tokenizer = tiny_tokenizer()
model = Model(tokenizer).says("x" * 30)
model.gate = threading.Semaphore(3)
threading.Thread(target=lambda: model.gate.release(len(sys.stdin.read())), daemon=True).start()
stack = make_stack(model, tokenizer, {}, {"shutdown_timeout": 1000})
server = make_server(stack.app, host="127.0.0.1", port=0, log_level="warning")
started = server.startup

async def startup(sockets=None):
    await started(sockets)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)

server.startup = startup
server.run()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """A server that runs the script."""
    root = Path(__file__).parents[2]
    running = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with running:
        yield running
        running.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_without_failure(process: subprocess.Popen[str], number: signal.Signals) -> None:
    assert process.stdout is not None
    assert process.stdin is not None
    url = f"http://127.0.0.1:{int(process.stdout.readline())}"
    body = {"prompt": "hi", "stream": True, "max_tokens": 150}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        chunks = answer.iter_text()
        text = next(chunks)
        process.send_signal(number)
        assert eventually(lambda: httpx.get(f"{url}/health").status_code == 503)
        process.stdin.write("x" * 1000)
        process.stdin.close()
        text += "".join(chunks)
    assert process.wait(60) == 0
    assert sse(text)[-1]["choices"][0]["finish_reason"] == "stop"
