"""Whether the server's memory stays where it is: resident size over thousands of short requests.

python -m benchmarks.memory [--requests 2000] [--warm-up 300]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
from pathlib import Path

import httpx
from tqdm import tqdm

from benchmarks.served import WITHOUT_PREFIXES, server, stream

_CONCURRENT = 16
_MIB = 2**20


def resident(pid: int) -> float:
    """Resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


async def load(url: str, count: int, seed: int) -> None:
    """`count` short requests of random lengths, sixteen at a time."""
    generator = random.Random(seed)
    places = asyncio.Semaphore(_CONCURRENT)
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        with tqdm(total=count, desc="requests") as bar:

            async def one() -> None:
                async with places:
                    prompt = [generator.randint(100, 40_000) for _ in range(generator.randint(1, 40))]
                    await stream(client, prompt, generator.randint(1, 6))
                    bar.update()

            await asyncio.gather(*(one() for _ in range(count)))


def main() -> None:
    """Warm up, measure, load, measure again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=300)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/memory.json"))
    arguments = parser.parse_args()
    with server(*WITHOUT_PREFIXES) as running:
        asyncio.run(load(running.url, arguments.warm_up, seed=0))
        before = resident(running.pid)
        asyncio.run(load(running.url, arguments.requests, seed=1))
        after = resident(running.pid)
    print(f"{arguments.requests} requests: {before:,.1f} MiB before, {after:,.1f} MiB after, {after - before:+.1f} MiB")
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    figures = {"requests": arguments.requests, "mib_before": before, "mib_after": after}
    arguments.results.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
