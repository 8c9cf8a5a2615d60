"""What a JSON schema costs: decoding speed through HTTP with one and without, the same prompts and lengths.

    python -m benchmarks.constrained [--sequences 16] [--prompt 128] [--new-tokens 128] [--rounds 5]

Tokens per second over the time in which all sequences decode. The two take turns, each first in every other round, and
the figure that counts is the median of the ratios within a round, because what else runs on a machine slows both. The
schema asks for more than `--new-tokens` can hold, so that no answer ends early; without it end tokens are ignored.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from pathlib import Path

from tqdm import tqdm

from benchmarks.served import WITHOUT_PREFIXES, server
from benchmarks.throughput import prompts, served_speed

_ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "kind": {"enum": ["fruit", "bread", "cheese", "tool"]},
        "price": {"type": "number", "minimum": 0, "maximum": 1000},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    },
    "required": ["name", "kind", "price", "count", "tags"],
}
_SHORTEST_ITEM = 12  # tokens, and fewer than it can have
_WARM_UP_TOKENS = 8

Speeds = dict[str, list[float]]
"""Tokens per second of each round, by kind of request: free, or with a schema."""


def bodies_of(new_tokens: int, temperature: float) -> dict[str, dict[str, object]]:
    """What requests of each kind say beside their prompt."""
    schema = {"type": "array", "items": _ITEM, "minItems": new_tokens // _SHORTEST_ITEM + 1}
    form = {"ignore_eos": False, "structured_outputs": {"json": schema}}
    return {"free": {"temperature": temperature}, "schema": {"temperature": temperature, **form}}


async def measure(url: str, sequences: int, prompt: int, new_tokens: int, temperature: float, rounds: int) -> Speeds:
    """Send the prompts of each round twice, with the schema and without."""
    bodies = bodies_of(new_tokens, temperature)
    speeds: Speeds = {kind: [] for kind in bodies}
    for body in bodies.values():
        await served_speed(url, prompts(sequences, prompt, seed=-1), _WARM_UP_TOKENS, **body)
    with tqdm(total=rounds * len(bodies), desc="runs") as bar:
        for number in range(rounds):
            batch = prompts(sequences, prompt, seed=number)
            for kind in list(bodies)[:: -1 if number % 2 else 1]:
                speeds[kind].append(await served_speed(url, batch, new_tokens, **bodies[kind]))
                bar.update()
    return speeds


def ratios(speeds: Speeds) -> list[float]:
    """Speed with the schema by speed without, of each round."""
    return [schema / free for free, schema in zip(speeds["free"], speeds["schema"], strict=True)]


def table(speeds: Speeds) -> str:
    """Medians and rounds, and the ratio."""
    lines = {kind: (values, f"{statistics.median(values):8.1f} tok/s", ".1f") for kind, values in speeds.items()}
    lines["ratio"] = (ratios(speeds), f"{statistics.median(ratios(speeds)):8.3f}      ", ".3f")
    return "\n".join(
        f"{name:8}{median}    rounds {', '.join(format(value, digits) for value in values)}"
        for name, (values, median, digits) in lines.items()
    )


def main() -> None:
    """Measure, print a table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="flags for the server; must come last")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/constrained.json"))
    arguments = parser.parse_args()
    asked = {name: getattr(arguments, name) for name in ("sequences", "prompt", "new_tokens", "temperature", "rounds")}
    with server(*WITHOUT_PREFIXES, *arguments.flags) as running:
        speeds = asyncio.run(measure(running.url, **asked))
    print(f"{arguments.sequences} sequences of {arguments.prompt} prompt tokens")
    print(table(speeds))
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    figures = {
        **asked,
        "flags": arguments.flags,
        "tokens_per_second": speeds,
        "ratio": statistics.median(ratios(speeds)),
    }
    arguments.results.write_text(json.dumps({**asked, "flags": arguments.flags, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
