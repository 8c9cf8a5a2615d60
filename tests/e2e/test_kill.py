"""A server that is killed in mid-load loses the requests in flight, and nothing else."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.model

FLAGS = ["--kv-cache-memory-bytes", "16MiB", "--max-num-seqs", "4", "--max-num-batched-tokens", "128"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def served(port: int, cache: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server that is ready."""
    command = [sys.executable, "-m", "server", "--port", str(port), "--cache-dir", str(cache), *FLAGS]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while get(port, "/ready") != 200:
            assert process.poll() is None
            assert time.monotonic() < deadline, "not ready in time"
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


def get(port: int, path: str) -> int | None:
    """The status of a GET; None if nobody answers."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5).status_code
    except httpx.TransportError:
        return None


def load_on(port: int) -> subprocess.Popen[str]:
    """The load tester at work."""
    flags = [
        "--num-prompts",
        "12",
        "--max-concurrency",
        "4",
        "--input-len",
        "64",
        "--output-len",
        "400",
        "--ignore-eos",
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "client", "--base-url", f"http://127.0.0.1:{port}", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def wait_for_work(port: int) -> None:
    deadline = time.monotonic() + 60
    while httpx.get(f"http://127.0.0.1:{port}/load", timeout=5).json()["server_load"] < 4:
        assert time.monotonic() < deadline, "no load comes"
        time.sleep(0.05)


def test_killed_in_mid_load_and_started_again(default_model_folder: Path) -> None:
    cache = default_model_folder.parent
    port = free_port()
    before = sorted(cache.rglob("*"))
    with served(port, cache) as process, load_on(port) as tester:
        wait_for_work(port)
        process.kill()
        report, _ = tester.communicate(timeout=60)
    assert int(re.findall(r"Failed requests: +(\d+)", report)[0]) == 12
    kinds = {kind: int(count) for count, kind in re.findall(r"^(\d+) (\w+): ", report, re.MULTILINE)}
    assert kinds.keys() == {"disconnected", "connect"}, report
    assert sum(kinds.values()) == 12
    assert sorted(cache.rglob("*")) == before, "something stale is left in the cache"
    with served(port, cache) as process:
        body = {"prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
        assert "Paris" in answer.json()["choices"][0]["text"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
