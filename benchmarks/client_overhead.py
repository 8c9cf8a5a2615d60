"""What the load tester itself adds to the latencies that it reports.

A scripted server in another process writes tokens on a schedule and notes when. The load tester, held to one core,
measures it; each figure is then compared with the server's own notes. Other work on the machine shows as lateness of
both: run it on an idle one, or with `chrt -f 5` before it.

python -m benchmarks.client_overhead [--streams 1 50 200 1000] [--itl 0.05] [--body-bytes 400000]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter

import httpx
import numpy as np
import numpy.typing as npt

from client.connection import Clock
from client.loop import run
from client.notes import notes
from client.pool import Address, ConnectionPool
from client.record import RequestRecord
from client.request import Call, stream_request
from client.runner import Limits, Outcome, run_load
from client.summary import Wanted, summarise

FloatArray = npt.NDArray[np.float64]
WITHIN_MS = 2.0
HEAD = """\
What was reported minus what was true, in ms, where tokens of all streams come apart or together; how late tokens were
stamped, and how late the client's own loop woke up, in ms; what it read and how much of its core that took; whether
all of TTFT and ITL is within 2 ms; and what the client says of itself.

                 ------- TTFT ---------  -------- ITL ---------  --- stamp ----    loop  tokens  core
streams tokens       mean     p50     p99    mean     p50     p99     p50     p99     p99   per s  used  2 ms  client"""


@contextmanager
def scripted(options: argparse.Namespace, *, batches: bool) -> Iterator[str]:
    """A scripted server in a process of its own, on the other cores if there are any; its URL."""
    command = [sys.executable, "-m", "benchmarks.scripted_server", "--ttft", str(options.ttft)]
    command += ["--itl", str(options.itl), "--tokens", str(options.tokens), *(["--batches"] if batches else [])]
    cores = os.sched_getaffinity(0)
    own, *others = sorted(cores)
    if others:
        os.sched_setaffinity(0, others)  # for the server, which inherits it
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(0, {own})
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait(30)
        os.sched_setaffinity(0, cores)


async def load(url: str, streams: int, requests: int, body_bytes: int) -> Outcome:
    """`requests` requests, `streams` at a time, stamped by perf_counter; and one before them that does not count."""
    body = json.dumps({"model": "scripted", "stream": True, "prompt": "x" * body_bytes}).encode()
    address = Address.of(f"{url}/v1/completions")
    outcome = Outcome()
    async with ConnectionPool() as pool:

        async def send(call: Call, _due: float | None, _clock: Clock) -> RequestRecord:
            return await stream_request(pool, address, call, due=None, clock=perf_counter, timeout_s=600)

        await send(Call("warm-up", body, 8), 0.0, perf_counter)
        await pool.warm(address, streams)
        calls = [Call(f"r{i}", body, 8) for i in range(requests)]
        await run_load(calls, send, outcome, due_times=None, limits=Limits(streams), on_done=lambda _: None)
    return outcome


def compare(outcome: Outcome, log: Mapping[str, Sequence[float]]) -> dict[str, tuple[FloatArray, ...]]:
    """Per figure what the server noted and what the client measured, in ms: ttft and itl; and how late it stamped."""
    truth: dict[str, list[FloatArray]] = {"ttft": [], "itl": [], "stamp": []}
    seen: dict[str, list[FloatArray]] = {"ttft": [], "itl": [], "stamp": []}
    for record in outcome.records:
        if record.failure:
            raise SystemExit(f"{record.request_id} failed: {record.failure}")
        read, *written = log[record.request_id]
        stamps = np.array([arrival.at for arrival in record.arrivals])
        times = np.array(written)
        for values, events, start in ((truth, times, read), (seen, stamps, record.due)):
            values["ttft"].append(events[:1] - start)
            values["itl"].append(np.diff(events))
            values["stamp"].append(events)
    return {name: (1000 * np.concatenate(truth[name]), 1000 * np.concatenate(seen[name])) for name in truth}


def measure(options: argparse.Namespace, streams: int, *, batches: bool) -> str:
    """One line of the table."""
    with scripted(options, batches=batches) as url:
        outcome = run(load(url, streams, streams * options.rounds, options.body_bytes))
        log = httpx.get(f"{url}/log", timeout=60).json()
    figures = compare(outcome, log)
    errors = []
    for name in ("ttft", "itl"):
        noted, said = figures[name]
        errors += [said.mean() - noted.mean(), *(np.percentile(said, [50, 99]) - np.percentile(noted, [50, 99]))]
    stamped, at = figures["stamp"]
    late = np.percentile(at - stamped, [50, 99])
    summary = summarise(outcome, len(outcome.records), Wanted([], [], {}))
    verdict = "yes" if max(map(abs, errors)) < WITHIN_MS else "NO"
    claim = next((note.split(":")[0] for note in notes(summary)), "fine")
    numbers = "".join(f"{error:>8.2f}" for error in (*errors, *late, 1000 * summary.client.lag_p99))
    speed = f"{summary.output_throughput:>8.0f}{summary.client.cpu_share:>6.0%}"
    return f"{streams:>7} {'together' if batches else 'apart':<9}{numbers}{speed}  {verdict:<4}  {claim}"


def main() -> None:
    """Reads the command line, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 50, 200, 1000], metavar="N")
    parser.add_argument("--ttft", type=float, default=0.2, metavar="S", help="default: %(default)s")
    parser.add_argument("--itl", type=float, default=0.05, metavar="S", help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=40, metavar="N", help="per request; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="requests per stream; default: %(default)s")
    parser.add_argument("--body-bytes", type=int, default=100, metavar="N", help="of a request; default: %(default)s")
    options = parser.parse_args()
    print(HEAD)
    for batches in (False, True):
        for streams in options.streams:
            print(measure(options, streams, batches=batches), flush=True)


if __name__ == "__main__":
    main()
