"""Greedy text of the default model, whatever the paging, chunking and memory, is that of `transformers` generate.

A small version of `python -m benchmarks.exactness`, on real text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.exactness import Reference, compare, references
from benchmarks.local import generate
from benchmarks.texts import passages
from models.tokenizer import Tokenizer
from scheduler.request import GenerationRequest, SamplingParams
from server.engine_options import EngineOptions
from server.launch import assemble

pytestmark = pytest.mark.model

_NEW_TOKENS = 20
_MIB = 2**20
_BASE = EngineOptions(
    quantization="none",
    kv_cache_dtype="float32",
    kv_policy="full",
    kv_cache_memory_bytes=128 * _MIB,
    max_num_seqs=4,
    debug_pages=True,
)
_SCENARIOS = {
    "batched": _BASE,
    "alone": replace(_BASE, max_num_seqs=1),
    "chunks of 64, pages of 1": replace(_BASE, max_num_batched_tokens=64, page_size=1),
    "pages of 32": replace(_BASE, page_size=32),
    "preempted": replace(_BASE, kv_cache_memory_bytes=31 * _MIB),
    "budget never reached": replace(_BASE, kv_policy="scissorhands", kv_evict="always", kv_budget=100_000),
    "ample memory": replace(_BASE, kv_policy="scissorhands"),
}


@pytest.fixture(scope="module")
def prompts(default_model_folder: Path) -> list[tuple[int, ...]]:
    return list(passages(Tokenizer.from_folder(default_model_folder), [9, 64, 210, 330]))


@pytest.fixture(scope="module")
def wanted(default_model_folder: Path, prompts: Sequence[tuple[int, ...]]) -> list[Reference]:
    return references(default_model_folder, prompts, _NEW_TOKENS)


@pytest.mark.parametrize("name", _SCENARIOS)
def test_same_tokens(name: str, prompts: Sequence[tuple[int, ...]], wanted: Sequence[Reference]) -> None:
    assembly = assemble(_SCENARIOS[name])
    params = SamplingParams(max_tokens=_NEW_TOKENS, temperature=0.0)
    made = generate(
        assembly, [GenerationRequest(str(i), prompt, params) for i, prompt in enumerate(prompts)], check=True
    )
    verdict = compare(made, wanted)
    assert verdict.wrong == []
    assert verdict.equal + len(verdict.near_ties) == len(prompts)
    stats = assembly.scheduler.stats()
    assert (stats.preemptions_total > 0) == (name == "preempted")
    assert stats.rows_evicted_total == 0
    assert stats.pages_free == stats.pages_total


@pytest.mark.parametrize("policy", ["scissorhands", "h2o", "streaming", "scissorhands-paper"])
def test_an_evicting_server_still_writes_text(policy: str, prompts: Sequence[tuple[int, ...]]) -> None:
    """Half of the rows gone: every request ends, pages come back, and the text is not a loop of one token."""
    assembly = assemble(replace(_BASE, kv_policy=policy, kv_evict="always", kv_budget=0.5))
    params = SamplingParams(max_tokens=_NEW_TOKENS, temperature=0.0, ignore_eos=True)
    made = generate(
        assembly, [GenerationRequest(str(i), prompt, params) for i, prompt in enumerate(prompts)], check=True
    )
    stats = assembly.scheduler.stats()
    assert all(len(tokens) == _NEW_TOKENS and len(set(tokens)) > 5 for tokens in made.values())
    assert stats.rows_evicted_total > 0
    assert stats.pages_freed_total > 0
    assert stats.pages_free == stats.pages_total
