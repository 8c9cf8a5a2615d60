"""Greedy text against `transformers` generate, token for token, whatever the batching, chunking, paging and memory.

    python -m benchmarks.exactness [--prompts 20] [--new-tokens 64] [--longest 2000]

A step at which the reference's two best logits are closer than 1e-4 is reported; what follows it is not compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from benchmarks.local import generate
from benchmarks.texts import passages
from models.source import default_cache_dir, prepare_model
from models.tokenizer import Tokenizer
from scheduler.request import GenerationRequest, SamplingParams
from server.engine_options import EngineOptions
from server.launch import assemble

_CLOSE = 1e-4
_BASE = EngineOptions(
    quantization="none",
    kv_cache_dtype="float32",
    kv_policy="full",
    kv_cache_memory_bytes=2 * 2**30,
    max_num_batched_tokens=2048,
    max_num_seqs=16,
)


@dataclass(frozen=True, slots=True)
class Reference:
    """Tokens that `transformers` generated, and at each step the gap between its two best logits."""

    tokens: list[int]
    gaps: list[float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Prompts that agree to the end; places where a near tie was decided otherwise; places that disagree."""

    equal: int
    near_ties: list[str]
    wrong: list[str]


def scenarios() -> dict[str, EngineOptions]:
    """Ways to run the same prompts that must not change a token."""
    paged = {f"pages of {size}": replace(_BASE, page_size=size) for size in (1, 8, 32)}
    return {
        "alone": replace(_BASE, max_num_seqs=1),
        "batches of 16": _BASE,
        "chunks of 64": replace(_BASE, max_num_batched_tokens=64),
        **paged,
        "preempted": replace(_BASE, kv_cache_memory_bytes=98 * 2**20),  # a prompt of 2,000 tokens just fits
        "budget never reached": replace(_BASE, kv_policy="scissorhands", kv_evict="always", kv_budget=100_000),
        "watched, ample memory": replace(_BASE, kv_policy="scissorhands"),
    }


def references(folder: Path, prompts: Sequence[tuple[int, ...]], new_tokens: int) -> list[Reference]:
    """What `transformers` makes of the prompts, one by one, in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt in tqdm(prompts, desc="transformers"):
        ids = torch.tensor([prompt])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        best = [logits[0].topk(2).values for logits in made.logits]
        found.append(Reference(made.sequences[0, len(prompt) :].tolist(), [float(two[0] - two[1]) for two in best]))
    return found


def compare(made: Mapping[str, list[int]], wanted: Sequence[Reference]) -> Verdict:
    """Match every prompt's tokens with its reference."""
    verdict = Verdict(0, [], [])
    for number, reference in enumerate(wanted):
        tokens = made[str(number)]
        pairs = zip(tokens, reference.tokens, strict=False)
        place = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        if place is None and len(tokens) == len(reference.tokens):
            verdict = replace(verdict, equal=verdict.equal + 1)
        elif place is not None and reference.gaps[place] < _CLOSE:
            verdict.near_ties.append(f"prompt {number}, token {place}, gap {reference.gaps[place]:.1e}")
        else:
            verdict.wrong.append(f"prompt {number}, token {place}")
    return verdict


def main() -> int:
    """Run every scenario; exit status 1 if any token differs without a near tie."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--longest", type=int, default=2000, help="tokens of the longest prompt")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=scenarios(), help="scenarios to run")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/exactness.json"))
    arguments = parser.parse_args()
    folder = prepare_model(None, default_cache_dir())
    lengths = [max(1, arguments.longest * (i + 1) // arguments.prompts) for i in range(arguments.prompts)]
    prompts = list(passages(Tokenizer.from_folder(folder), lengths))
    wanted = references(folder, prompts, arguments.new_tokens)
    requests = [
        GenerationRequest(str(i), prompt, SamplingParams(max_tokens=arguments.new_tokens, temperature=0.0))
        for i, prompt in enumerate(prompts)
    ]
    results: dict[str, object] = {}
    failed = False
    chosen = {name: options for name, options in scenarios().items() if name in (arguments.only or scenarios())}
    for name, options in tqdm(chosen.items(), desc="scenarios"):
        assembly = assemble(options)
        verdict = compare(generate(assembly, requests), wanted)
        stats = assembly.scheduler.stats()
        assert (stats.preemptions_total > 0) == (name == "preempted"), f"{name}: {stats.preemptions_total} preemptions"
        assert stats.rows_evicted_total == 0
        failed |= bool(verdict.wrong)
        results[name] = {"equal": verdict.equal, "near_ties": verdict.near_ties, "wrong": verdict.wrong}
        tqdm.write(
            f"{name:24} {verdict.equal:3} of {len(prompts)} equal   {verdict.near_ties or ''} {verdict.wrong or ''}"
        )
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps({"prompts": lengths, "scenarios": results}, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
