"""Throws broken requests at a server: nothing may break it, and a canary's answer may never change.

    python -m benchmarks.fuzz [--minutes 10] [--seed 0] [--concurrent 8]

Bodies, headers, paths and methods of every route, damaged at random. No answer may be a 5xx other than the 503 of a
full queue, every refusal must be an error object, every page must be free at the end, and the log may hold no
traceback. The first failure ends it; the request is cut down as far as it still fails, and printed. `--seed S --only N`
sends case N of seed S alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from benchmarks.fuzz_cases import Case, make_case, smaller
from benchmarks.served import Running, metrics, server

_FLAGS = ("--max-model-len", "512", "--max-num-seqs", "16", "--kv-cache-memory-bytes", "64MiB", "--seed", "0")
_CANARY = {"prompt": "The canary sings", "max_tokens": 12, "temperature": 0, "logprobs": 1}
_ANSWER_SECONDS = 30.0  # after which the client gives a request up, as real ones do
_SILENCE_SECONDS = 0.1  # for requests that are not complete
_CANARY_EVERY = 100
_MOST_CUTS = 300
_MOST_LOG = 20_000  # characters that are shown: the exception stands at a traceback's end


class Failed(Exception):
    """The server did what it may not do."""


@dataclass(slots=True)
class Outcome:
    """What a run saw. `answers`: how many of each status; "none" where the connection ended without an answer."""

    seed: int
    cases: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str | None = None
    request: str | None = None


async def send(case: Case, port: int) -> tuple[str, bytes]:
    """Send one case; the status, or "none", and the body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(case.wire)
        await writer.drain()
        if case.hangs_up:
            return "none", b""
        seconds = _ANSWER_SECONDS if case.is_complete else _SILENCE_SECONDS
        async with asyncio.timeout(seconds):
            head = await reader.readuntil(b"\r\n\r\n")
            body = await _read_body(reader, head, case)
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        return "none", b""
    finally:
        writer.close()
    return head.split(b" ", 2)[1].decode(errors="replace"), body


async def _read_body(reader: asyncio.StreamReader, head: bytes, case: Case) -> bytes:
    lines = [line.lower() for line in head.split(b"\r\n")]
    lengths = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")]
    if case.method == b"HEAD":
        return b""
    if lengths:
        return await reader.readexactly(lengths[0])
    if b"transfer-encoding: chunked" not in lines:
        return await reader.read()
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    return body


def complaint(case: Case, status: str, body: bytes) -> str | None:
    """What is wrong with an answer, if anything."""
    if status == "none":
        return None
    if status.startswith("5") and status != "503":
        return f"status {status}: {body[:300]!r}"
    if b'"internal_error"' in body and body.startswith(b"data: "):
        return f"a stream ended with an internal error: {body[-300:]!r}"
    if status[0] in "45" and case.method != b"HEAD":
        try:
            json.loads(body)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            return f"status {status} without an error object: {body[:300]!r}"
    return None


async def canary(client: httpx.AsyncClient) -> Any:
    """The choices of a greedy request that never changes."""
    while True:
        response = await client.post("/v1/completions", json=_CANARY)
        if response.status_code != 503:
            break
        await asyncio.sleep(0.1)
    if response.status_code != 200:
        raise Failed(f"the canary got {response.status_code}: {response.text[:300]}")
    return response.json()["choices"]


async def routes_of(client: httpx.AsyncClient) -> list[tuple[str, str]]:
    """Every method and path that the server's description names, and the description's own."""
    paths = (await client.get("/openapi.json")).raise_for_status().json()["paths"]
    return [*((method.upper(), path) for path in sorted(paths) for method in paths[path]), ("GET", "/openapi.json")]


async def fuzz(running: Running, seed: int, *, seconds: float, concurrent: int, show: bool = True) -> Outcome:
    """Send cases 0, 1, ... of `seed` until time is up or one fails. Prompts differ in nothing but the seed."""
    outcome, numbers, began = Outcome(seed), count(), time.monotonic()
    port = httpx.URL(running.url).port or 80
    async with httpx.AsyncClient(base_url=running.url, timeout=600) as client:
        routes, song = await routes_of(client), await canary(client)
        with tqdm(total=round(seconds), desc="fuzzing", unit="s", disable=not show) as bar:

            async def work() -> None:
                for number in numbers:
                    if outcome.failure is not None or time.monotonic() - began >= seconds:
                        return
                    case = make_case(seed, number, routes)
                    status, body = await send(case, port)
                    outcome.cases += 1
                    outcome.answers[status] = outcome.answers.get(status, 0) + 1
                    bar.update(min(bar.total, int(time.monotonic() - began)) - bar.n)
                    if wrong := complaint(case, status, body):
                        outcome.failure = f"case {number}: {wrong}"
                        outcome.request = repr((await minimal(case, port)).wire)
                    elif number % _CANARY_EVERY == 0 and await canary(client) != song:
                        raise Failed(f"the canary's answer changed at case {number}")

            await asyncio.gather(*(work() for _ in range(concurrent)))
        try:
            await _check_end(client, song)
        except Failed as failure:
            outcome.failure = outcome.failure or str(failure)
    outcome.seconds = time.monotonic() - began
    return outcome


async def minimal(case: Case, port: int) -> Case:
    """`case`, cut down as far as it still fails."""
    cuts = smaller(case)
    for _ in range(_MOST_CUTS):
        cut = next(cuts, None)
        if cut is None:
            break
        if complaint(cut, *await send(cut, port)):
            case, cuts = cut, smaller(cut)
    return case


async def _check_end(client: httpx.AsyncClient, song: Any) -> None:
    """All must be free and well when nobody asks any more."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        gauges = metrics((await client.get("/metrics")).text)
        if not gauges["vllm:num_requests_running"] + gauges["vllm:num_requests_waiting"]:
            break
        await asyncio.sleep(0.1)
    if usage := gauges["vllm:kv_cache_usage_perc"]:
        raise Failed(f"{usage:.2%} of the pages are in use though nobody asks")
    if (await client.get("/health")).status_code != 200:
        raise Failed("the server is not healthy any more")
    if await canary(client) != song:
        raise Failed("the canary's answer changed")


def run(seed: int, seconds: float, concurrent: int, *, show: bool = True) -> Outcome:
    """Fuzz a server of its own."""
    with tempfile.TemporaryFile("w+b") as log:
        with server(*_FLAGS, log=log) as running:
            outcome = asyncio.run(fuzz(running, seed, seconds=seconds, concurrent=concurrent, show=show))
        log.seek(0)
        text = log.read().decode(errors="replace")
    if outcome.failure is None and "Traceback" in text:
        outcome.failure = "the log holds a traceback: ..." + text[text.index("Traceback") :][:_MOST_LOG]
    return outcome


async def send_only(running: Running, seed: int, number: int) -> None:
    """Send one case again and print what comes."""
    async with httpx.AsyncClient(base_url=running.url, timeout=600) as client:
        case = make_case(seed, number, await routes_of(client))
    print(case.wire)
    print(*await send(case, httpx.URL(running.url).port or 80))


def main() -> None:
    """Fuzz for some minutes, print what was seen and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, help="(default: at random, and printed)")
    parser.add_argument("--only", type=int, metavar="N", help="send case N of the seed, and nothing else")
    parser.add_argument("--concurrent", type=int, default=8)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/fuzz.json"))
    arguments = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    if arguments.only is not None:
        with server(*_FLAGS) as running:
            asyncio.run(send_only(running, seed, arguments.only))
        return
    print(f"seed {seed}")
    outcome = run(seed, arguments.minutes * 60, arguments.concurrent)
    answers = ", ".join(f"{number} x {status}" for status, number in sorted(outcome.answers.items()))
    print(f"seed {seed}: {outcome.cases} cases in {outcome.seconds:.0f} s; {answers}")
    if outcome.failure is not None:
        print(f"FAILED: {outcome.failure}\n{outcome.request or ''}")
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    sys.exit(outcome.failure is not None)


if __name__ == "__main__":
    main()
