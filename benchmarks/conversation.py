"""What a long conversation costs per turn, with the prefix cache and without it.

    python -m benchmarks.conversation [--turns 8] [--tokens 200] [--answer 64] [--rounds 3]

Each turn sends all that was said, and `--tokens` more. With the cache, only those are read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from pathlib import Path
from statistics import median

import httpx
from tqdm import tqdm

from benchmarks.served import metrics, server, stream
from models.source import default_cache_dir, prepare_model
from models.tokenizer import Tokenizer

SETTINGS = {"prefix cache": (), "no prefix cache": ("--no-enable-prefix-caching",)}


async def converse(
    url: str, tokenizer: Tokenizer, turns: int, tokens: int, answer: int, seed: int
) -> tuple[list[float], list[int]]:
    """Seconds to the first token of each turn, and the tokens of each that were read anew."""
    drawn = random.Random(seed)
    history: list[int] = []
    first, read = [], []
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        for _ in range(turns):
            history += [drawn.randrange(1000, 40000) for _ in range(tokens)]
            result = await stream(client, history, answer, logprobs=0)
            details = result.usage["prompt_tokens_details"]
            assert isinstance(details, dict)
            first.append(result.arrivals[0])
            read.append(len(history) - details["cached_tokens"])
            history += tokenizer.encode(result.text)
    return first, read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200, help="that each turn adds (%(default)s)")
    parser.add_argument("--answer", type=int, default=64, help="tokens (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_folder(prepare_model(None, default_cache_dir()))
    table = {}
    for title, flags in SETTINGS.items():
        with server(*flags) as running:
            rounds = [
                asyncio.run(converse(running.url, tokenizer, arguments.turns, arguments.tokens, arguments.answer, seed))
                for seed in tqdm(range(arguments.rounds), title)
            ]
            totals = metrics(httpx.get(f"{running.url}/metrics").text)
        first = [median(times) for times in zip(*(times for times, _ in rounds), strict=True)]
        table[title] = {
            "first_token_seconds": first,
            "tokens_read": rounds[0][1],
            "last_by_second": first[-1] / first[1],
            "hits": totals["vllm:prefix_cache_hits_total"],
        }
        print(f"{title:16} first token after, ms:", *(f"{1000 * seconds:6.0f}" for seconds in first))
        print(f"{'':16} tokens read          :", *(f"{count:6}" for count in rounds[0][1]))
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "conversation.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
