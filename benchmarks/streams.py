"""Many streams at once, clients that vanish, and a reader who does not read: what they cost the server and each other.

    python -m benchmarks.streams [--streams 500] [--vanish 1000] [--stall-seconds 60]

The lag of the event loop is the server's own, from its metrics: what a client sees also holds its own delay. Ends with
status 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import httpx
from tqdm import tqdm

from benchmarks.memory import resident
from benchmarks.served import WITHOUT_PREFIXES, Running, histogram, metrics, server, stream

_IDS = (100, 40_000)  # ordinary text tokens of the default model
_NEW_TOKENS = 24
_QUEUE = 4096
_IDLE_SECONDS = 300
_READERS = 8
_COMPANION = {"logprobs": 20, "max_tokens": 4000, "ignore_eos": True, "stream": True}


@dataclass(frozen=True, slots=True)
class Crowd:
    """`streams` streams at once. `lag_p99`: seconds, at most; `mib_before`, `mib_after`: resident, idle both times."""

    streams: int
    errors: int
    seconds: float
    lag_p99: float
    mib_before: float
    mib_after: float

    def __str__(self) -> str:
        memory = f"memory {self.mib_before:.1f} MiB before and {self.mib_after:.1f} after"
        lag = f"event loop late by {1000 * self.lag_p99:.0f} ms (p99)"
        return f"{self.streams} streams: {self.errors} errors in {self.seconds:.1f} s, {lag}, {memory}"


@dataclass(frozen=True, slots=True)
class Vanished:
    """`clients` that left; `seconds` from the last one's leaving until nothing ran and every page was free."""

    clients: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.clients} clients vanished: all pages free after {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Stalled:
    """Tokens per second of some readers, beside one more who reads, and beside one who takes nothing, in turns."""

    beside_a_reader: list[float]
    beside_none: list[float]

    @property
    def cost(self) -> float:
        """Share of their speed that the others lose."""
        return 1 - sum(self.beside_none) / sum(self.beside_a_reader)

    def __str__(self) -> str:
        speeds = (mean(self.beside_a_reader), mean(self.beside_none))
        return "stalled reader: others get {:.0f} tok/s beside one who reads, {:.0f} beside it".format(*speeds)


def _client(running: Running) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=running.url, timeout=600, limits=limits)


def _prompt(generator: random.Random) -> list[int]:
    return [generator.randint(*_IDS) for _ in range(generator.randint(4, 32))]


async def _until_idle(client: httpx.AsyncClient) -> None:
    """Wait until nothing runs or waits and no page is in use."""
    deadline = time.monotonic() + _IDLE_SECONDS
    while time.monotonic() < deadline:
        gauges = metrics((await client.get("/metrics")).text)
        busy = gauges["vllm:num_requests_running"] + gauges["vllm:num_requests_waiting"]
        if not busy and not gauges["vllm:kv_cache_usage_perc"]:
            return
        await asyncio.sleep(0.02)
    raise SystemExit(f"after {_IDLE_SECONDS} s there is still work, or pages are in use")


async def crowd(running: Running, count: int, seed: int) -> Crowd:
    """`count` streams, all sent at once."""
    generator = random.Random(seed)
    async with _client(running) as client:
        before, began = resident(running.pid), time.monotonic()
        lag_before = histogram((await client.get("/metrics")).text, "scissorserve:event_loop_lag_seconds")
        with tqdm(total=count, desc="streams") as bar:

            async def one(prompt: Sequence[int]) -> bool:
                try:
                    streamed = await stream(client, prompt, _NEW_TOKENS)
                except (httpx.HTTPError, SystemExit):
                    return False
                finally:
                    bar.update()
                return streamed.usage.get("completion_tokens") == _NEW_TOKENS

            good = await asyncio.gather(*(one(_prompt(generator)) for _ in range(count)))
        seconds = time.monotonic() - began
        await _until_idle(client)
        lag = histogram((await client.get("/metrics")).text, "scissorserve:event_loop_lag_seconds") - lag_before
        return Crowd(count, good.count(False), seconds, lag.quantile(0.99), before, resident(running.pid))


async def vanish(running: Running, count: int, seed: int) -> Vanished:
    """`count` clients that leave after a moment, in the queue, in their prompt, or in the middle of their stream."""
    generator = random.Random(seed)
    port = httpx.URL(running.url).port or 80
    places = asyncio.Semaphore(100)

    async def one(bar: tqdm[None]) -> None:
        body = {
            "prompt": _prompt(generator),
            "max_tokens": 2000,
            "ignore_eos": True,
            "stream": generator.random() < 0.7,
        }
        async with places:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_request(body | {"n": generator.choice((1, 1, 1, 4))}))
            await asyncio.sleep(generator.choice((0.0, 0.01, 0.1, 0.5)))
            leave = writer.transport.abort if generator.random() < 0.5 else writer.close
            leave()
            bar.update()

    with tqdm(total=count, desc="vanishing") as bar:
        await asyncio.gather(*(one(bar) for _ in range(count)))
    left = time.monotonic()
    async with _client(running) as client:
        await _until_idle(client)
    return Vanished(count, time.monotonic() - left)


async def stall(running: Running, seconds: float, seed: int) -> Stalled:
    """Streams of readers beside one more who reads, then beside one who takes nothing, and so on, `seconds` in all."""
    generator = random.Random(seed)
    speeds: dict[bool, list[float]] = {True: [], False: []}
    deadline = time.monotonic() + seconds
    async with _client(running) as client:
        with tqdm(total=round(seconds), desc="stalling", unit="s") as bar:
            while time.monotonic() < deadline:
                for reads in (True, False):
                    companion = asyncio.create_task(_companion(running, generator, reads=reads))
                    speeds[reads].append(await _speed(client, generator))
                    companion.cancel()
                    await asyncio.gather(companion, return_exceptions=True)
                    await _until_idle(client)
                    bar.update(min(bar.total, round(seconds - (deadline - time.monotonic()))) - bar.n)
    return Stalled(speeds[True], speeds[False])


async def _companion(running: Running, generator: random.Random, *, reads: bool) -> None:
    """A client with a long answer, who takes it or not, until cancelled."""
    port = httpx.URL(running.url).port or 80
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    try:
        writer.write(_request({"prompt": _prompt(generator), **_COMPANION}))
        await reader.readuntil(b"\r\n\r\n")
        while reads:
            await reader.read(65536)
        await asyncio.Event().wait()
    finally:
        writer.transport.abort()


def _request(body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


async def _speed(client: httpx.AsyncClient, generator: random.Random) -> float:
    began = time.monotonic()
    await asyncio.gather(*(stream(client, _prompt(generator), _NEW_TOKENS) for _ in range(_READERS)))
    return _READERS * _NEW_TOKENS / (time.monotonic() - began)


def _complaints(results: dict[str, Crowd | Vanished | Stalled], arguments: argparse.Namespace) -> list[str]:
    """Limits that were exceeded."""
    found = []
    match results.get("crowd"):
        case Crowd() as seen:
            if seen.errors:
                found.append(f"{seen.errors} of {seen.streams} streams failed")
            if seen.lag_p99 > arguments.lag_limit:
                found.append(f"the event loop's lag is up to {seen.lag_p99 * 1000:.0f} ms in 99 % of all cases")
            if seen.mib_after - seen.mib_before > arguments.mib_limit:
                found.append(f"{seen.mib_after - seen.mib_before:.0f} MiB did not come back")
    match results.get("vanished"):
        case Vanished() as seen if seen.seconds > arguments.free_limit:
            found.append(f"it took {seen.seconds:.1f} s until all pages were free")
    match results.get("stalled"):
        case Stalled() as seen if seen.cost > arguments.cost_limit:
            found.append(f"a reader who does not read costs the others {seen.cost:.0%} of their speed")
    return found


def _measure(running: Running, arguments: argparse.Namespace) -> dict[str, Crowd | Vanished | Stalled]:
    results: dict[str, Crowd | Vanished | Stalled] = {}
    if arguments.streams:
        asyncio.run(crowd(running, arguments.streams, seed=0))  # what a first crowd takes is kept for the next ones
        results["crowd"] = asyncio.run(crowd(running, arguments.streams, seed=1))
    if arguments.vanish:
        results["vanished"] = asyncio.run(vanish(running, arguments.vanish, seed=2))
    if arguments.stall_seconds:
        results["stalled"] = asyncio.run(stall(running, arguments.stall_seconds, seed=3))
    return results


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--streams", type=int, default=500, metavar="N", help="streams at once; 0 leaves this part out (%(default)s)")
    add("--vanish", type=int, default=1000, metavar="N", help="clients that leave (%(default)s)")
    add("--stall-seconds", type=float, default=60, metavar="S", help="of a reader who takes nothing (%(default)s)")
    add("--lag-limit", type=float, default=0.05, metavar="S", help="of the event loop, 99 of 100 times (%(default)s)")
    add("--mib-limit", type=float, default=20, metavar="MIB", help="of memory that may stay taken (%(default)s)")
    add("--free-limit", type=float, default=5, metavar="S", help="until all pages are free (%(default)s)")
    add("--cost-limit", type=float, default=0.05, metavar="SHARE", help="of a stalled reader to others (%(default)s)")
    add("--results", type=Path, default=Path("benchmarks/results/streams.json"))
    add("--flags", nargs=argparse.REMAINDER, default=[], help="flags for the server; must come last")
    arguments = parser.parse_args()
    flags = ("--max-num-queued-reqs", str(_QUEUE), *WITHOUT_PREFIXES, *arguments.flags)
    with server(*flags) as running:
        results = _measure(running, arguments)
    for part in results.values():
        print(part)
    complaints = _complaints(results, arguments)
    print("\n".join(complaints) or "within all limits")
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    figures = {name: asdict(part) for name, part in results.items()}
    arguments.results.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
