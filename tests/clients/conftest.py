"""A server with the default model, for clients that live in another environment than it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER_PYTHON = os.environ.get("SERVER_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
KEY = "secret"
MODEL = "default"
_FOLDER = (
    "from models.source import default_cache_dir, prepare_model\n"
    "print(prepare_model(None, default_cache_dir(), lambda line: None))"
)


@dataclass(frozen=True)
class Server:
    """Where it is; `folder`: the model's files."""

    url: str
    folder: Path

    @property
    def v1(self) -> str:
        """What OpenAI's clients call the base URL."""
        return f"{self.url}/v1"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all clients."""
    yield from _serve()


@pytest.fixture
def small_server() -> Iterator[Server]:
    """One whose context is so short that no answer takes long."""
    yield from _serve("--max-model-len", "64")


@pytest.fixture
def exact_server() -> Iterator[Server]:
    """One that computes in float32, as transformers does."""
    yield from _serve("--quantization", "none", "--kv-cache-dtype", "float32")


def _serve(*more: str) -> Iterator[Server]:
    folder = subprocess.run([SERVER_PYTHON, "-c", _FOLDER], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--port", str(port), "--api-key", KEY, "--kv-cache-memory-bytes", "512MiB"]
    flags += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--uvicorn-log-level", "warning"]
    flags += ["--served-model-name", MODEL, folder.strip()]  # some clients take their tokenizer from the name
    process = subprocess.Popen([SERVER_PYTHON, "-m", "server", *flags, *more], cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, process)
        yield Server(url, Path(folder.strip()))
        assert process.poll() is None, "the server is still there"
        with urllib.request.urlopen(f"{url}/health") as health:
            assert health.status == 200
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 600  # a busy machine takes minutes
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(f"{url}/health"):
                return
        except urllib.error.URLError:
            time.sleep(0.2)
    raise TimeoutError("the server does not answer")
