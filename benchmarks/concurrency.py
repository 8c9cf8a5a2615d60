"""How many sequences run at once in one pool, and how fast: the full cache beside evicting policies.

    python -m benchmarks.concurrency [--pools 128MiB 512MiB] [--requests 64] [--prompt 1000 2000] [--new-tokens 128]

All requests are sent at once, each with a prompt of its own whose length lies evenly between the two of --prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median

import httpx
import numpy as np
from tqdm import tqdm

from benchmarks.served import Streamed, metrics, server, stream
from benchmarks.throughput import prompts

_FIFTH = ("--kv-budget", "0.2", "--kv-evict")
SETTINGS = {
    "full": ("--kv-policy", "full"),
    "full, no prefix cache": ("--kv-policy", "full", "--no-enable-prefix-caching"),
    "scissorhands, always": ("--kv-policy", "scissorhands", *_FIFTH, "always"),
    "calibrated, always": ("--kv-policy", "calibrated", *_FIFTH, "always"),
    "calibrated, pressure": ("--kv-policy", "calibrated", *_FIFTH, "pressure"),
}
_COLUMNS = {
    "running": "peak_running",
    "on average": "mean_running",
    "seconds": "seconds",
    "out tok/s": "tokens_per_second",
    "TTFT s": "first_token_seconds",
    "budget compr.": "scissorserve:kv_compressions_total{budget}",
    "pressure compr.": "scissorserve:kv_compressions_total{pressure}",
    "pages freed": "scissorserve:kv_pages_freed_total",
    "preemptions": "vllm:num_preemptions_total",
}


async def load(url: str, batch: list[list[int]], new_tokens: int, title: str) -> dict[str, float]:
    """Send all of `batch` at once; returns the last metrics, the peak of running sequences and the speed."""
    limits = httpx.Limits(max_connections=len(batch) + 1)
    async with httpx.AsyncClient(base_url=url, timeout=3600, limits=limits) as client:
        began, running = time.perf_counter(), [0.0]
        tasks = [asyncio.create_task(stream(client, prompt, new_tokens)) for prompt in batch]
        with tqdm(total=len(batch), desc=title) as bar:
            while not all(task.done() for task in tasks):
                now = metrics((await client.get("/metrics")).text)
                running.append(now["vllm:num_requests_running"])
                bar.update(sum(task.done() for task in tasks) - bar.n)
                await asyncio.sleep(0.2)
            bar.update(len(batch) - bar.n)
        results: list[Streamed] = [task.result() for task in tasks]
        seconds = time.perf_counter() - began
        assert all(result.usage["completion_tokens"] == new_tokens for result in results)
        final = metrics((await client.get("/metrics")).text)
    return {
        **final,
        "peak_running": max(running),
        "mean_running": fmean(running),
        "seconds": seconds,
        "tokens_per_second": len(batch) * new_tokens / seconds,
        "first_token_seconds": median(result.arrivals[0] for result in results),
    }


def main() -> None:
    """Measure every setting in every pool, print a table, write it as JSON and as a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", nargs="+", default=["256MiB"], metavar="SIZE")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt", type=int, nargs="+", default=[1000, 2000], metavar="TOKENS")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="SETTING")
    parser.add_argument(
        "--flags", nargs=argparse.REMAINDER, default=[], help="for every server, after all other options"
    )
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/concurrency.json"))
    arguments = parser.parse_args()
    lengths = np.linspace(arguments.prompt[0], arguments.prompt[-1], arguments.requests).round().astype(int).tolist()
    batch = [prompts(1, length, seed)[0] for seed, length in enumerate(lengths)]
    table: dict[str, dict[str, dict[str, float]]] = {}
    print(f"{len(batch)} requests of {lengths[0]} to {lengths[-1]} + {arguments.new_tokens} tokens, all at once")
    for pool in arguments.pools:
        table[pool] = {}
        print(f"{pool:24}", *(f"{label:>16}" for label in _COLUMNS))
        for title in arguments.only:
            with server("--kv-cache-memory-bytes", pool, *SETTINGS[title], *arguments.flags) as running:
                values = asyncio.run(load(running.url, batch, arguments.new_tokens, title))
            table[pool][title] = {label: values[key] for label, key in _COLUMNS.items()}
            print(f"{title:24}", *(f"{value:16,.1f}" for value in table[pool][title].values()), flush=True)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps(table, indent=2) + "\n")
    _draw(table, arguments.results.with_suffix(".svg"))


def _draw(table: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """Sequences at once and speed against the pool, one line a setting; a note where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture: it takes pip install '.[bench]'")
        return
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, label in zip(figure.subplots(1, 2), ("running", "out tok/s"), strict=True):
        for title in next(iter(table.values())):
            axes.plot(list(table), [row[title][label] for row in table.values()], marker="o", label=title)
        axes.set(xlabel="KV pool", ylabel={"running": "sequences at once"}.get(label, label), ylim=(0, None))
    axes.legend(frameon=False)
    figure.savefig(path)


if __name__ == "__main__":
    main()
