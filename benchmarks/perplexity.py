"""What rounding costs: perplexity of real text under each precision of weights and of rows.

    python -m benchmarks.perplexity [--passages 8] [--length 1000] [--chunk 256]

The prompt is read in chunks, so all but the first read rows that were stored and rounded. Ratios are to float32.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from benchmarks.texts import passages
from models.source import default_cache_dir, prepare_model
from models.tokenizer import Tokenizer
from scheduler.request import GenerationRequest, SamplingParams
from server.engine_options import EngineOptions
from server.launch import Assembly, assemble

_BASE = EngineOptions(quantization="none", kv_policy="full", kv_cache_dtype="float32", max_num_seqs=4)
SETTINGS = {
    "float32": _BASE,
    "int8 weights": replace(_BASE, quantization="int8"),
    "int8 rows": replace(_BASE, kv_cache_dtype="int8"),
    "int4 rows": replace(_BASE, kv_cache_dtype="int4"),
    "int8 weights, int8 rows": replace(_BASE, quantization="int8", kv_cache_dtype="int8"),
    "int8 weights, int4 rows": replace(_BASE, quantization="int8", kv_cache_dtype="int4"),
}


def negative_log_likelihood(assembly: Assembly, prompts: Iterable[tuple[int, ...]]) -> float:
    """Mean over the tokens of `prompts`, the first of each left out."""
    scheduler, runner = assembly.scheduler, assembly.runner
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    for number, prompt in enumerate(prompts):
        scheduler.add(GenerationRequest(str(number), prompt, params))
    logprobs: list[float] = []
    while (plan := scheduler.plan()) is not None:
        scheduler.apply(runner.execute(plan))
        for _, event in scheduler.take_events():
            logprobs += [entry.logprob for entry in event.prompt_logprobs or () if entry is not None]
    return -math.fsum(logprobs) / len(logprobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--length", type=int, default=1000, help="tokens of a passage (%(default)s)")
    parser.add_argument("--chunk", type=int, default=256, help="tokens per step (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="SETTING")
    arguments = parser.parse_args()
    folder = prepare_model(None, default_cache_dir())
    prompts = list(passages(Tokenizer.from_folder(folder), [arguments.length] * arguments.passages))
    perplexities = {}
    for name in tqdm([name for name in SETTINGS if name in {"float32", *arguments.only}], desc="settings"):
        assembly = assemble(replace(SETTINGS[name], max_num_batched_tokens=arguments.chunk))
        perplexities[name] = math.exp(negative_log_likelihood(assembly, prompts))
    print(
        f"Perplexity of {arguments.passages} passages of {arguments.length} tokens, read in chunks of {arguments.chunk}"
    )
    for name, perplexity in perplexities.items():
        print(f"{name:<26}{perplexity:8.3f}   x {perplexity / perplexities['float32']:.4f}")
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "perplexity.json").write_text(json.dumps(perplexities, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
