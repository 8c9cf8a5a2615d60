"""Decoding speed through HTTP, beside `transformers` generate of the same batch in the same run.

    python -m benchmarks.throughput [--sequences 16] [--prompt 512] [--new-tokens 64] [--rounds 3]

Tokens per second over the time in which all sequences decode; rounds alternate, medians are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import statistics
import time
from pathlib import Path

import httpx
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.served import server, stream
from models.source import default_cache_dir, prepare_model

_LOWEST_ID, _HIGHEST_ID = 100, 40_000  # ordinary text tokens of the default model


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Random ids, so that no prompt shares a prefix with another."""
    generator = random.Random(seed)
    return [[generator.randint(_LOWEST_ID, _HIGHEST_ID) for _ in range(length)] for _ in range(count)]


async def served_speed(url: str, batch: list[list[int]], new_tokens: int, **extra: object) -> float:
    """Tokens per second of `batch` through the server, from the last first token to the first end.

    `extra` goes into the body of each request.
    """
    limits = httpx.Limits(max_connections=len(batch))
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        began = time.perf_counter()
        results = await asyncio.gather(*(_timed(client, prompt, new_tokens, began, **extra) for prompt in batch))
    start, end = max(times[0] for times in results), min(times[-1] for times in results)
    return sum(start < moment <= end for times in results for moment in times) / (end - start)


async def _timed(
    client: httpx.AsyncClient, prompt: list[int], new_tokens: int, began: float, **extra: object
) -> list[float]:
    offset = time.perf_counter() - began
    result = await stream(client, prompt, new_tokens, lambda: None, logprobs=0, **extra)
    return [offset + arrival for arrival in result.arrivals]


def generate_speed(model: PreTrainedModel, batch: list[list[int]], new_tokens: int) -> float:
    """Tokens per second of `batch` through `generate`, the time of the prompt and the first token taken off."""
    ids = torch.tensor(batch)
    seconds = []
    for count in (1, new_tokens):
        began = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=count,
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        seconds.append(time.perf_counter() - began)
    return len(batch) * (new_tokens - 1) / (seconds[1] - seconds[0])


def main() -> None:
    """Measure, print a table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="flags for the server; must come last")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/throughput.json"))
    arguments = parser.parse_args()
    folder = prepare_model(None, default_cache_dir())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    speeds: dict[str, list[float]] = {"scissorserve": [], "transformers": []}
    with server(*arguments.flags) as running:
        for number in tqdm(range(arguments.rounds), desc="rounds"):
            batch = prompts(arguments.sequences, arguments.prompt, seed=number)
            speeds["scissorserve"].append(asyncio.run(served_speed(running.url, batch, arguments.new_tokens)))
            speeds["transformers"].append(generate_speed(model, batch, arguments.new_tokens))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    print(f"{arguments.sequences} sequences of {arguments.prompt} prompt tokens on {platform.machine()}")
    for name, values in speeds.items():
        print(f"{name:14} {medians[name]:7.1f} tok/s    rounds {', '.join(f'{value:.1f}' for value in values)}")
    print(f"{'ratio':14} {medians['scissorserve'] / medians['transformers']:7.2f}")
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(arguments, name) for name in ("sequences", "prompt", "new_tokens", "rounds", "flags")}
    arguments.results.write_text(json.dumps({**settings, "tokens_per_second": speeds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
