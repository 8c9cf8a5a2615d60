"""Wrong reuse, through the real runner: texts are those of a cold engine, whoever shared their beginnings."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from models.causal_lm import CausalLM
from models.checkpoint import Checkpoint
from models.loader import load_model
from scheduler.request import GenerationRequest, SamplingParams
from tests.models.test_runner import Stack
from tests.models.tiny import VOCABULARY, saved, tiny_llama

ROWS = 120  # per lane, in the pool: a few sequences, so pages are given up and sequences preempted
WAVE = 12  # requests at once


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    return load_model(Checkpoint(saved(tiny_llama(), tmp_path_factory.mktemp("tiny"))))


def waves(count: int, seed: int) -> Iterator[list[GenerationRequest]]:
    """`count` requests in waves; most go on from a text that was there before, some under another salt."""
    drawn = random.Random(seed)
    texts: list[tuple[int, ...]] = [()]
    for first in range(0, count, WAVE):
        requests = []
        for number in range(first, min(first + WAVE, count)):
            begun = drawn.choice(texts[-30:])
            begun = begun[: drawn.randint(0, len(begun))]
            prompt = begun + tuple(drawn.randrange(VOCABULARY) for _ in range(drawn.randint(1, 20)))
            texts.append(prompt[:70])
            params = SamplingParams(max_tokens=drawn.choice([1, 6, 45]), temperature=0.0, ignore_eos=True)
            salt = drawn.choice([None, None, "a"])
            request = GenerationRequest(str(number), texts[-1], params, n=drawn.choice([1, 1, 2]), cache_salt=salt)
            policy = drawn.choice([None, None, None, "streaming"])
            requests.append(replace(request, kv_policy=policy, kv_budget=drawn.choice([14, 0.4]) if policy else None))
        yield requests


def check_reuse(model: CausalLM, count: int, seed: int, **limits: object) -> Stack:
    """Serve `count` requests warm and each whole one cold; returns the warm stack."""
    warm = Stack(model, rows=ROWS, prefix_caching=True, **limits)
    cold = Stack(model, rows=ROWS, max_num_seqs=1, **limits)
    for requests in waves(count, seed):
        choices = iter(warm.serve(*requests))
        for request in requests:
            told: Sequence[list[int]] = [next(choices).tokens for _ in range(request.n)]
            if request.kv_policy is None:
                (alone,) = cold.serve(replace(request, n=1))
                assert told == [alone.tokens] * request.n, f"request {request.request_id} was told another text"
    return warm


@pytest.mark.parametrize("evict", ["pressure", "always"])
def test_shared_beginnings_change_no_text(model: CausalLM, evict: str) -> None:
    stats = check_reuse(model, 84, seed=3, evict=evict).scheduler.stats()
    assert stats.prefix_tokens_found_total > 0
    assert sum(stats.compressions_total.values()) > 0
    assert stats.preemptions_total > 0
