"""The prefix cache on the default model: less is computed, and no text changes by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.local import generate
from benchmarks.texts import passages
from models.source import default_cache_dir, prepare_model
from models.tokenizer import Tokenizer
from scheduler.request import GenerationRequest, SamplingParams
from server.engine_options import EngineOptions
from server.launch import Assembly, assemble

_BASE = EngineOptions(kv_policy="full", kv_cache_memory_bytes=96 * 2**20, max_num_seqs=8, debug_pages=True)


@pytest.fixture(scope="module")
def texts() -> list[tuple[int, ...]]:
    folder = prepare_model(None, default_cache_dir())
    return list(passages(Tokenizer.from_folder(folder), [200, 40, 30, 25]))


def ask(assembly: Assembly, name: str, prompt: tuple[int, ...], **changes: Any) -> tuple[int, ...]:
    """The greedy continuation of `prompt`, alone in the engine, books checked after each step."""
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    request = replace(GenerationRequest(name, prompt, params), **changes)
    return tuple(generate(assembly, [request], check=True)[name])


@pytest.mark.parametrize("policy", ["full", "calibrated"])
def test_a_conversation_reads_each_turn_once(policy: str, texts: list[tuple[int, ...]]) -> None:
    options = replace(_BASE, kv_policy=policy)
    warm, cold = assemble(options), assemble(replace(options, enable_prefix_caching=False))
    history: tuple[int, ...] = ()
    for turn, text in enumerate(texts):
        history += text
        before = warm.scheduler.stats().prefix_tokens_found_total
        answer = ask(warm, f"turn {turn}", history)
        assert answer == ask(cold, f"turn {turn}", history)
        found = warm.scheduler.stats().prefix_tokens_found_total - before
        known = len(history) - len(text)  # the last token of an answer is drawn, not read
        assert found == max(0, known - 1) // 16 * 16
        history += answer
    assert cold.scheduler.stats().prefix_tokens_found_total == 0


def test_choices_of_a_request_read_its_prompt_once(texts: list[tuple[int, ...]]) -> None:
    params = SamplingParams(max_tokens=12, temperature=0.9, seed=5)
    request = GenerationRequest("a", texts[0], params, n=5)
    told = []
    for caching in (True, False):
        assembly = assemble(replace(_BASE, enable_prefix_caching=caching))
        scheduler, computed = assembly.scheduler, 0
        choices: dict[int, list[int]] = {}
        scheduler.add(request)
        while (plan := scheduler.plan()) is not None:
            computed += sum(work.tokens.size for work in plan.work if work.position < len(texts[0]))
            scheduler.apply(assembly.runner.execute(plan))
            scheduler.check_integrity()
            for _, event in scheduler.take_events():
                choices.setdefault(event.index, []).extend(event.tokens)
        told.append(choices)
        assert computed == (len(texts[0]) + 4 * (len(texts[0]) % 16 or 16) if caching else 5 * len(texts[0]))
    assert told[0] == told[1]


def test_a_salt_keeps_requests_apart(texts: list[tuple[int, ...]]) -> None:
    assembly = assemble(_BASE)
    first = ask(assembly, "a", texts[0], cache_salt="one")
    assert ask(assembly, "b", texts[0], cache_salt="two") == first
    assert ask(assembly, "c", texts[0]) == first
    assert assembly.scheduler.stats().prefix_tokens_found_total == 0
    assert ask(assembly, "d", texts[0], cache_salt="two") == first
    assert assembly.scheduler.stats().prefix_tokens_found_total > 0


def test_what_was_compressed_is_found_whole(texts: list[tuple[int, ...]]) -> None:
    """Survivors are copied, so the prompt of a compressed sequence can be read again, and is compressed alike."""
    options = replace(_BASE, kv_policy="calibrated", kv_evict="always", kv_budget=0.3)
    assembly = assemble(options)
    first = ask(assembly, "a", texts[0])
    evicted = assembly.scheduler.stats().rows_evicted_total
    assert evicted > 0
    assert ask(assembly, "b", texts[0]) == first
    stats = assembly.scheduler.stats()
    assert stats.rows_evicted_total == 2 * evicted
    assert stats.prefix_tokens_found_total == (len(texts[0]) - 1) // 16 * 16
    whole = ask(assembly, "c", texts[0], kv_policy="full")
    assert whole == ask(assemble(_BASE), "c", texts[0])


def test_policies_that_note_attention_share_nothing() -> None:
    assembly = assemble(replace(_BASE, kv_policy="h2o"))
    assert not assembly.scheduler.config.prefix_caching
    assert any("Prefix cache: off, because h2o" in line for line in assembly.summary)
