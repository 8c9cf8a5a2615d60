"""Who is told what of the server's state, and how it ends when it cannot go on."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from server.lifecycle import Lifecycle
from server.watchdog import LoopWatchdog
from tests.server.stack import Live, Model, Stack, eventually, sse

StackFactory = Callable[..., Stack]
Serve = Callable[[Stack], Live]


def reason(response: httpx.Response) -> str:
    """Why a probe got a 503."""
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    message: str = response.json()["error"]["message"]
    return message


def test_the_server_is_ready_once_its_own_request_is_answered(stack: StackFactory, model: Model, live: Serve) -> None:
    model.gate = threading.Semaphore(0)
    server = live(stack(model, warm_up=True))
    assert reason(httpx.get(f"{server.url}/ready")) == "the server is warming up"
    assert httpx.head(f"{server.url}/ready").status_code == 503
    assert httpx.get(f"{server.url}/health").status_code == 200
    model.gate.release(1000)
    assert eventually(lambda: httpx.get(f"{server.url}/ready").status_code == 200)
    assert model.num_steps > 0
    assert server.is_idle()


def test_a_server_whose_own_request_fails_is_not_ready(
    stack: StackFactory, model: Model, live: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(model, "execute", broken)
    server = live(stack(model, warm_up=True))
    assert eventually(lambda: "failed" in reason(httpx.get(f"{server.url}/ready")))
    assert httpx.get(f"{server.url}/health").status_code == 200  # one failed step is no dead engine


def test_a_draining_server_is_not_ready(stack: StackFactory, model: Model, live: Serve) -> None:
    model.gate = threading.Semaphore(3)
    server = live(stack(model.says("x" * 100), shutdown_timeout=1000))
    body = {"prompt": "hi", "stream": True, "max_tokens": 150}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        assert httpx.get(f"{server.url}/ready").status_code == 200
        server.end()
        assert eventually(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        assert reason(httpx.get(f"{server.url}/ready")) == "the server is shutting down"
        assert reason(httpx.post(f"{server.url}/v1/completions", json=body))
        model.gate.release(1000)
        assert response.read().endswith(b"data: [DONE]\n\n")
    server.thread.join(30)
    assert not server.thread.is_alive()


def test_an_unhealthy_server_is_not_ready(stack: StackFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    server = stack()
    monkeypatch.setattr(server.engine, "unhealthy_reason", lambda: "a step takes too long")
    assert reason(server.run(lambda client: client.get("/ready"))) == "a step takes too long"


def test_a_server_may_stop_while_it_warms_up(stack: StackFactory, model: Model) -> None:
    model.gate = threading.Semaphore(0)
    server = stack(model, warm_up=True)
    lifecycle: Lifecycle = server.services.lifecycle

    async def main() -> None:
        await lifecycle.start()
        assert await asyncio.to_thread(eventually, lambda: server.engine.stats().num_running > 0)
        assert model.gate is not None
        model.gate.release(1000)
        await lifecycle.stop()
        assert not lifecycle.is_stuck

    asyncio.run(main())


SCRIPT = """
import sys
import threading
import time
from server import command
from server.cli import parse
from server.launch import Assembly
from server.memory_plan import MemoryPlan
from server.sampling_defaults import SamplingDefaults
from server.settings import ServerSettings
from scheduler.engine import AsyncEngine, compute_thread
from server.uvicorn_server import GracefulServer
from tests.server.stack import Model, make_stack, tiny_tokenizer

class Quick(Assembly):
    def engine(self, observer=None, executor=None):
        return AsyncEngine(self.scheduler, self.runner, observer, executor=executor, stop_seconds=0.2)

def execute(plan):
    {action}

tokenizer = tiny_tokenizer()
model = Model(tokenizer)
model.execute = execute
started = GracefulServer.startup

async def startup(self, sockets=None):
    await started(self, sockets)
    print(self.servers[0].sockets[0].getsockname()[1], flush=True)

GracefulServer.startup = startup
options = parse(["--port", "0"], {{}})
plan = MemoryPlan(1, 1, 1, 1, 1, 10, ())
scheduler = make_stack(model, tokenizer, {{}}, {{}}).engine._scheduler
parts = Quick(scheduler, model, tokenizer, None, plan, SamplingDefaults(), ())
sys.exit(command.serve(options, ServerSettings(("tiny",), shutdown_timeout=0.1), parts, compute_thread()))
"""


@contextmanager
def process(action: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process whose steps do `action`, and its address."""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(action=action)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        try:
            yield running, f"http://127.0.0.1:{int(running.stdout.readline())}"
        finally:
            running.kill()


def test_a_dead_engine_ends_the_process_with_a_failure() -> None:
    with process("raise RuntimeError('no device')") as (running, url):
        for _ in range(3):
            assert httpx.post(f"{url}/v1/completions", json={"prompt": "hi"}, timeout=60).status_code == 500
        assert running.wait(60) == 1
        assert running.stderr is not None
        assert "ending with status 1" in running.stderr.read()


def test_a_step_that_never_ends_does_not_keep_the_process_alive() -> None:
    with process("print('in a step', flush=True); threading.Event().wait()") as (running, url):
        answers: list[httpx.Response] = []
        body = {"prompt": "hi", "stream": True}
        reader = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{url}/v1/completions", json=body, timeout=60))
        )
        reader.start()
        assert running.stdout is not None
        assert running.stdout.readline() == "in a step\n"
        running.send_signal(signal.SIGTERM)
        reader.join(60)
        assert "before the request was complete" in sse(answers[0].text)[-1]["error"]["message"]
        assert running.wait(60) == 1
        assert running.stderr is not None
        assert "a step does not end" in running.stderr.read()


class Released(logging.Handler):
    """Says in an event that a line came which a pattern fits."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self.seen = threading.Event()
        self.line = ""
        self._pattern = pattern

    def emit(self, record: logging.LogRecord) -> None:
        if re.search(self._pattern, record.getMessage()):
            self.line = record.getMessage()
            self.seen.set()


def hang(until: threading.Event) -> None:
    """What no callback of a loop should do."""
    assert until.wait(10)


def test_the_watchdog_says_where_a_loop_hangs_and_that_it_goes_on() -> None:
    hangs, goes_on = Released("hangs"), Released("goes on")
    logger = logging.getLogger("server.watchdog")
    watchdog = LoopWatchdog(interval=0.005, limit=0.02)

    async def main() -> None:
        watchdog.start()
        hang(hangs.seen)
        assert await asyncio.to_thread(goes_on.seen.wait, 10)
        watchdog.stop()

    for handler in (hangs, goes_on):
        logger.addHandler(handler)
    try:
        asyncio.run(main())
    finally:
        for handler in (hangs, goes_on):
            logger.removeHandler(handler)
    assert "hang (" in hangs.line
