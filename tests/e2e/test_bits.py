"""With 8-bit layers a request's logprobs are the same bits, whoever else is in the batch and however it is chunked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.texts import passages
from models.tokenizer import Tokenizer
from scheduler.request import GenerationRequest, SamplingParams
from server.engine_options import EngineOptions
from server.launch import Assembly, assemble

pytestmark = pytest.mark.model

_BASE = EngineOptions(
    quantization="int8", kv_policy="full", kv_cache_memory_bytes=96 * 2**20, max_num_seqs=32, debug_pages=True
)
_PARAMS = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=2)
_LENGTHS = [130, 5, 64, 33, 90, 17, 200]

Trace = list[tuple[int, float, tuple[tuple[int, float], ...]]]


def traces(assembly: Assembly, prompts: Iterable[tuple[int, ...]]) -> list[Trace]:
    """Token, logprob and alternatives of each step, for each prompt."""
    scheduler, runner = assembly.scheduler, assembly.runner
    sequences = [scheduler.add(GenerationRequest(str(i), prompt, _PARAMS))[0] for i, prompt in enumerate(prompts)]
    found: dict[int, Trace] = {id(sequence): [] for sequence in sequences}
    while (plan := scheduler.plan()) is not None:
        scheduler.apply(runner.execute(plan))
        for sequence, event in scheduler.take_events():
            found[id(sequence)] += [(entry.token, entry.logprob, tuple(entry.top)) for entry in event.logprobs or ()]
    return [found[id(sequence)] for sequence in sequences]


@pytest.fixture(scope="module")
def prompts(default_model_folder: Path) -> list[tuple[int, ...]]:
    return list(passages(Tokenizer.from_folder(default_model_folder), _LENGTHS))


@pytest.fixture(scope="module", params=["int8", "int4"])
def base(request: pytest.FixtureRequest) -> EngineOptions:
    return replace(_BASE, kv_cache_dtype=request.param)


@pytest.fixture(scope="module")
def alone(base: EngineOptions, prompts: list[tuple[int, ...]]) -> list[Trace]:
    assembly = assemble(base)
    return [traces(assembly, [prompt])[0] for prompt in prompts]


@pytest.mark.parametrize(
    ("count", "chunk", "pages"), [(2, 512, 16), (7, 512, 16), (7, 64, 16), (32, 100, 16), (7, 33, 1)]
)
def test_same_bits(
    base: EngineOptions, prompts: list[tuple[int, ...]], alone: list[Trace], count: int, chunk: int, pages: int
) -> None:
    assembly = assemble(replace(base, max_num_batched_tokens=chunk, page_size=pages))
    together = traces(assembly, [prompts[i % len(prompts)] for i in range(count)])
    for i, trace in enumerate(together):
        assert len(trace) == _PARAMS.max_tokens
        assert trace == alone[i % len(prompts)], f"prompt {i}"


@pytest.mark.parametrize("pages", [1, 16])
def test_same_bits_from_known_beginnings(
    base: EngineOptions, prompts: list[tuple[int, ...]], alone: list[Trace], pages: int
) -> None:
    assembly = assemble(replace(base, page_size=pages))
    found = []
    for _ in range(2):
        assert [traces(assembly, [prompt])[0] for prompt in prompts] == alone
        found.append(assembly.scheduler.stats().prefix_tokens_found_total)
    assert found[1] - found[0] > sum(_LENGTHS) / 2
