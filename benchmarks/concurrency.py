"""How many sequences run at once in a small pool: the full cache beside an evicting policy.

python -m benchmarks.concurrency [--pool 256MiB] [--requests 24] [--prompt 1000] [--new-tokens 100]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

import httpx
from tqdm import tqdm

from benchmarks.served import Streamed, metrics, server, stream
from benchmarks.throughput import prompts

_EVICTING = ("--kv-policy", "scissorhands", "--kv-budget", "0.2", "--kv-evict", "always")
_COLUMNS = {
    "running at once": "peak_running",
    "seconds": "seconds",
    "out tok/s": "tokens_per_second",
    "compressions": "scissorserve:kv_compressions_total{budget}",
    "rows evicted": "scissorserve:kv_rows_evicted_total",
    "pages freed": "scissorserve:kv_pages_freed_total",
    "preemptions": "vllm:num_preemptions_total",
}


async def load(url: str, batch: list[list[int]], new_tokens: int, title: str) -> dict[str, float]:
    """Send all of `batch` at once; returns the last metrics, the peak of running sequences and the speed."""
    limits = httpx.Limits(max_connections=len(batch) + 1)
    async with httpx.AsyncClient(base_url=url, timeout=3600, limits=limits) as client:
        began, peak = time.perf_counter(), 0.0
        tasks = [asyncio.create_task(stream(client, prompt, new_tokens)) for prompt in batch]
        with tqdm(total=len(batch), desc=title) as bar:
            while not all(task.done() for task in tasks):
                now = metrics((await client.get("/metrics")).text)
                peak = max(peak, now["vllm:num_requests_running"])
                bar.update(sum(task.done() for task in tasks) - bar.n)
                await asyncio.sleep(0.2)
            bar.update(len(batch) - bar.n)
        results: list[Streamed] = [task.result() for task in tasks]
        seconds = time.perf_counter() - began
        assert all(result.usage["completion_tokens"] == new_tokens for result in results)
        final = metrics((await client.get("/metrics")).text)
    speed = len(batch) * new_tokens / seconds
    return {**final, "peak_running": peak, "seconds": seconds, "tokens_per_second": speed}


def main() -> None:
    """Measure both, print a table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", default="256MiB")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=1000)
    parser.add_argument("--new-tokens", type=int, default=100)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/concurrency.json"))
    arguments = parser.parse_args()
    batch = prompts(arguments.requests, arguments.prompt, seed=0)
    measured = {}
    for title, flags in {"full": ("--kv-policy", "full"), "scissorhands 0.2": _EVICTING}.items():
        with server("--kv-cache-memory-bytes", arguments.pool, *flags) as running:
            measured[title] = asyncio.run(load(running.url, batch, arguments.new_tokens, title))
    print(f"{arguments.requests} requests of {arguments.prompt} + {arguments.new_tokens} tokens in {arguments.pool}")
    for label, key in _COLUMNS.items():
        print(f"{label:16}", *(f"{title} {values[key]:>12,.1f}   " for title, values in measured.items()))
    table = {title: {key: values[key] for key in _COLUMNS.values()} for title, values in measured.items()}
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
