"""Measures what is drawn under a budget, through the scheduler: every sequence is held to it while it grows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from tqdm import tqdm

from benchmarks.forced import Feed
from benchmarks.quality_engine import Engine, Variant
from benchmarks.quality_record import FULL, Record
from scheduler.request import GenerationRequest, SamplingParams

LONG_BUDGET = 512  # rows per lane
_GRAM = 4


def agreement(
    engine: Engine, chats: Sequence[tuple[int, ...]], shares: Sequence[float], new_tokens: int
) -> Iterator[Record]:
    """Greedy answers beside those of the full cache: `until`, the share of tokens before the first that differs;
    `equal`, 1 if none does.
    """
    params = SamplingParams(max_tokens=new_tokens, temperature=0.0)
    plans = [(FULL, 1.0), *((str(variant), share) for variant in _evicting(engine) for share in shares if share < 1)]
    for prompt in tqdm(chats, desc="chats"):
        answers = _served(
            engine,
            (
                GenerationRequest(str(number), prompt, params, kv_policy=variant, kv_budget=share)
                for number, (variant, share) in enumerate(plans)
            ),
        )
        full = answers["0"]
        for number, (variant, share) in enumerate(plans):
            same = _same(full, answers[str(number)])
            figures = {"until": same / len(full), "equal": float(answers[str(number)] == full)}
            yield Record("agreement", len(prompt), engine.rows, variant, share, figures)


def long_texts(engine: Engine, prompts: Sequence[tuple[int, ...]], new_tokens: int, seed: int) -> Iterator[Record]:
    """Texts drawn with temperature 0.7: `repeated`, the share of 4-grams that stood before; the `perplexity` under the
    full cache; `distinct`, the share of tokens that differ from all others.
    """
    variants = [FULL, *map(str, _evicting(engine))]
    for number, prompt in enumerate(tqdm(prompts, desc="stories")):
        params = SamplingParams(max_tokens=new_tokens, temperature=0.7, seed=seed + number, ignore_eos=True)
        texts = _served(
            engine,
            (
                GenerationRequest(variant, prompt, params, kv_policy=variant, kv_budget=LONG_BUDGET)
                for variant in variants
            ),
        )
        for variant in variants:
            text = texts[variant]
            figures = {
                "repeated": repeated(text),
                "distinct": len(set(text)) / len(text),
                "perplexity": _perplexity(engine, prompt, text),
            }
            size = 1.0 if variant == FULL else LONG_BUDGET
            yield Record("long", len(prompt), engine.rows, variant, size, figures)


def repeated(tokens: Sequence[int]) -> float:
    """The share of the 4-grams of `tokens` that occur earlier in it."""
    grams = [tuple(tokens[start : start + _GRAM]) for start in range(len(tokens) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _evicting(engine: Engine) -> list[Variant]:
    return [variant for variant in engine.variants if variant != Variant(FULL)]


def _served(engine: Engine, requests: Iterable[GenerationRequest]) -> dict[str, list[int]]:
    """What the scheduler gives each request, by its id."""
    tokens: dict[str, list[int]] = {}
    for request in requests:
        engine.scheduler.add(request)
    while (plan := engine.scheduler.plan()) is not None:
        engine.scheduler.apply(engine.runner.execute(plan))
        for sequence, event in engine.scheduler.take_events():
            if event.finish is not None and event.finish.error is not None:
                raise RuntimeError(f"{sequence.request.request_id}: {event.finish.error}")
            tokens.setdefault(sequence.request.request_id, []).extend(event.tokens)
    return tokens


def _same(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens before the first difference."""
    pairs = zip(left, right, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _perplexity(engine: Engine, prompt: Sequence[int], text: Sequence[int]) -> float:
    fed = engine.forced.begin(FULL, engine.num_lanes)
    tokens = [*prompt, *text]
    (scored,) = engine.forced.feed([Feed(fed, tokens[:-1], tokens[1:])])
    engine.forced.end(fed)
    return math.exp(-math.fsum(entry.logprob for entry in scored[-len(text) :]) / len(text))
