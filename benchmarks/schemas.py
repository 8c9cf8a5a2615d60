"""Whether answers have the form that was asked for: many random JSON schemas, several at a time, against the model.

    python -m benchmarks.schemas [--schemas 200] [--concurrent 8] [--seed 0]

Every answer must end before `--max-tokens`, parse and validate. Ends with status 1 if any does not, and prints the
schemas of those.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema
from tqdm import tqdm

from benchmarks.random_schemas import Schema, random_schemas
from benchmarks.served import server

_TAIL = 80  # characters
_QUESTION = "Write a record of something in a shop, as JSON."


@dataclass(frozen=True, slots=True)
class Outcome:
    """One schema: `verdict` is valid, cut, invalid, refused or failed; `detail` says more where it is not valid."""

    schema: Schema
    verdict: str
    num_tokens: int = 0
    detail: str = ""


def judged(schema: Schema, answer: dict[str, Any]) -> Outcome:
    """What a chat completion is worth that was asked to follow `schema`."""
    choice, used = answer["choices"][0], answer["usage"]["completion_tokens"]
    text = choice["message"]["content"] or ""
    if choice["finish_reason"] == "length":
        return Outcome(schema, "cut", used, f"ends in {text[-_TAIL:]!r}")
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    try:
        checker.validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return Outcome(schema, "invalid", used, f"{str(error).splitlines()[0]} in {text}")
    return Outcome(schema, "valid", used)


async def ask_all(
    url: str, schemas: Sequence[Schema], *, concurrent: int, max_tokens: int, temperature: float
) -> list[Outcome]:
    """The outcome of each schema, `concurrent` of them at a time."""
    places = asyncio.Semaphore(concurrent)
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        with tqdm(total=len(schemas), desc="schemas") as bar:

            async def ask(number: int, schema: Schema) -> Outcome:
                body = {
                    "messages": [{"role": "user", "content": _QUESTION}],
                    "response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}},
                    "max_tokens": max_tokens,
                    "temperature": temperature,
                    "seed": number,
                }
                async with places:
                    response = await client.post("/v1/chat/completions", json=body)
                bar.update()
                if response.status_code != 200:
                    verdict = "refused" if response.status_code == 400 else "failed"
                    return Outcome(schema, verdict, detail=response.text)
                return judged(schema, response.json())

            return list(await asyncio.gather(*(ask(number, schema) for number, schema in enumerate(schemas))))


def main() -> None:
    """Ask, print what did not fit and how many did, and write that as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=200, metavar="N")
    parser.add_argument("--concurrent", type=int, default=8, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=2500)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="flags for the server; must come last")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/schemas.json"))
    arguments = parser.parse_args()
    schemas = random_schemas(arguments.schemas, arguments.seed)
    asked = {"concurrent": arguments.concurrent, "max_tokens": arguments.max_tokens}
    with server(*arguments.flags) as running:
        outcomes = asyncio.run(ask_all(running.url, schemas, temperature=arguments.temperature, **asked))
    bad = [outcome for outcome in outcomes if outcome.verdict != "valid"]
    for outcome in bad:
        print(f"{outcome.verdict}: {outcome.detail[:400]}\n    {json.dumps(outcome.schema)}")
    counts = Counter(outcome.verdict for outcome in outcomes)
    print(f"{len(outcomes)} schemas: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(arguments, name) for name in ("schemas", "seed", "temperature")}
    figures = {**settings, **asked, "verdicts": counts, "bad": [asdict(outcome) for outcome in bad]}
    arguments.results.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
