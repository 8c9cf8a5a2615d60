"""A mock of OpenAI's API on a free port, whose answers follow a script."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from client.__main__ import main

Step = float | bytes | Callable[[], Awaitable[Any]]
"""Seconds to wait, bytes to send, or something to await."""

DONE = b"data: [DONE]\n\n"


def event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def text(words: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": words, "finish_reason": finish}]})


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def usage(prompt: int, completion: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


@dataclass
class MockServer:
    """`script(n)` makes the answer to the n-th request from 0 on: steps of a stream, or a whole response.

    `clients` are the ports that requests came from: one per connection. `peak` counts streams open at once.
    """

    script: Callable[[int], list[Step] | Response]
    url: str = ""
    models: Callable[[], Response] = lambda: JSONResponse({"data": [{"id": "mock"}, {"id": "other"}]})
    metrics: Callable[[], Response] = lambda: Response(status_code=404)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    clients: set[int] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    in_flight: int = 0
    peak: int = 0

    def app(self) -> FastAPI:
        app = FastAPI()
        app.get("/v1/models")(self.list_models)
        app.get("/metrics")(self.show_metrics)
        app.post("/v1/completions")(self.complete)
        app.post("/v1/chat/completions")(self.complete)
        return app

    async def list_models(self) -> Response:
        return self.models()

    async def show_metrics(self) -> Response:
        return self.metrics()

    async def complete(self, request: Request) -> Response:
        number = next(self.numbers)
        self.bodies.append(await request.json())
        answer = self.script(number)
        self.headers.append(dict(request.headers))
        assert request.client is not None
        self.clients.add(request.client.port)
        if isinstance(answer, Response):
            return answer
        return StreamingResponse(self.play(answer), media_type="text/event-stream")

    async def play(self, steps: list[Step]) -> AsyncIterator[bytes]:
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            for step in steps:
                if isinstance(step, bytes):
                    yield step
                elif isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    await step()
        finally:
            self.in_flight -= 1


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer of one token per word."""
    words = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture
def wire() -> SimpleNamespace:
    """Makers of the bytes that a script sends."""
    return SimpleNamespace(event=event, text=text, delta=delta, usage=usage, done=DONE)


@pytest.fixture(scope="session")
def host() -> Iterator[tuple[FastAPI, str]]:
    """An HTTP server in a thread: the app that mocks are mounted on, and its address."""
    app = FastAPI()
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, log_level="error", lifespan="off", ws="none"))
    # Only of sockets that say that they are TCP asyncio switches off Nagle's delay, which costs 40 ms an answer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.005)
        assert server.started
        yield app, f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(timeout=30)
        assert not thread.is_alive(), "the mock server does not end"


@pytest.fixture
def serve(host: tuple[FastAPI, str]) -> Callable[..., MockServer]:
    """Makes a mock that plays a script, under a path of its own."""
    app, address = host

    def start(script: Callable[[int], list[Step] | Response]) -> MockServer:
        path = f"/mock{len(app.routes)}"
        mock = MockServer(script, address + path)
        app.mount(path, mock.app())
        return mock

    return start


@pytest.fixture
def dead_url() -> Iterator[str]:
    """An address that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@dataclass
class Run:
    status: int
    result: dict[str, Any]
    out: str
    err: str


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Runs the command against a mock and reads back what it printed and saved."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(server: MockServer, *flags: str) -> Run:
        file = tmp_path / "result.json"
        fixed = ["--base-url", server.url, "--input-len", "8", "--output-len", "4", "--save-detailed"]
        status = main([*fixed, "--result-dir", str(tmp_path), "--result-filename", file.name, *flags])
        captured = capsys.readouterr()
        result = json.loads(file.read_text()) if file.exists() else {}
        return Run(status, result, captured.out, captured.err)

    return run
