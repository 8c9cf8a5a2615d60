"""A server of our own in another process, and streams against it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

import httpx
from prometheus_client.parser import text_string_to_metric_families

# For those who look for memory that does not come back: the prefix cache fills the pool, which is its purpose.
WITHOUT_PREFIXES = ("--no-enable-prefix-caching",)
_START_SECONDS = 300


@dataclass(slots=True)
class Streamed:
    """When each event with text arrived, in seconds since sending, and what the usage chunk said."""

    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    usage: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Running:
    """A server: its base URL and its process id."""

    url: str
    pid: int


@contextmanager
def server(*flags: str, log: IO[bytes] | None = None) -> Iterator[Running]:
    """A server with `flags` on a free port, until the block is left. It logs warnings to `log`, else to our stderr."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "server", "--port", str(port), "--uvicorn-log-level", "warning", *flags]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
    url = f"http://127.0.0.1:{port}"
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # it would leave the server
    try:
        _wait_until_healthy(process, url)
        yield Running(url, process.pid)
    finally:
        process.terminate()
        process.wait(300)
        signal.signal(signal.SIGTERM, before)


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode} before it was up")
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit(f"the server was not up within {_START_SECONDS} s")


async def stream(
    client: httpx.AsyncClient,
    prompt: Sequence[int],
    max_tokens: int,
    heard: Callable[[], object] = lambda: None,
    **extra: object,
) -> Streamed:
    """One greedy completion of token ids, read to its end. `heard` is called at every event with text."""
    body = {"prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body |= {"stream_options": {"include_usage": True}, **extra}
    result, began = Streamed(), time.perf_counter()
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise SystemExit(f"the server answered {response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise SystemExit(f"a stream broke: {chunk['error']}")
            if chunk["usage"]:
                result.usage = chunk["usage"]
            if chunk["choices"] and chunk["choices"][0]["finish_reason"] is None:
                result.arrivals.append(time.perf_counter() - began)
                result.text += chunk["choices"][0]["text"]
                heard()
    return result


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many observations were at most so large: `counts` by upper bound, in order."""

    counts: dict[float, float]

    def __sub__(self, earlier: Histogram) -> Histogram:
        return Histogram({bound: count - earlier.counts.get(bound, 0.0) for bound, count in self.counts.items()})

    def quantile(self, share: float) -> float:
        """The bound below which `share` of all observations lie."""
        total = max(self.counts.values())
        return min(bound for bound, count in self.counts.items() if count >= share * total)


def histogram(text: str, name: str) -> Histogram:
    """The histogram `name` of a /metrics page."""
    families = (family for family in text_string_to_metric_families(text) if family.name == name)
    samples = (sample for family in families for sample in family.samples if sample.name.endswith("_bucket"))
    return Histogram({float(sample.labels["le"]): sample.value for sample in samples})


def metrics(text: str) -> dict[str, float]:
    """Samples of a /metrics page by name; labels other than a reason are dropped, of equal names the last counts."""
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            reason = sample.labels.get("reason")
            samples[f"{sample.name}{{{reason}}}" if reason else sample.name] = sample.value
    return samples
