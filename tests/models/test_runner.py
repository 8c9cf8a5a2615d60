"""Scheduler, runner and a tiny model together: transformers' tokens, however requests are batched, cut or preempted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import PreTrainedModel

from models.causal_lm import CausalLM
from models.checkpoint import Checkpoint
from models.config import ModelConfig
from models.loader import load_model
from models.runner import ModelRunner
from paged_kv.backend import load_backend
from paged_kv.batch import TableMirror
from paged_kv.calibration import Calibration
from paged_kv.eviction import EvictionDriver
from paged_kv.format import load_format
from paged_kv.lanes import LaneProfile
from paged_kv.plugins import names
from paged_kv.policy import CalibratedPolicy, Policy, load_policy
from paged_kv.pool import KVPool
from paged_kv.scoring import LinearScorer
from scheduler.budget import EvictionRules
from scheduler.config import SchedulerConfig
from scheduler.request import Finish, GenerationRequest, SamplingParams, TokenLogprob
from scheduler.scheduler import Scheduler
from tests.models.tiny import VOCABULARY, hf_logits, prompt, saved, tiny_llama

POLICIES = names("paged_kv.policies")
SINKS, RECENT = 2, 6
LENGTHS = (5, 1, 30, 17)
NEW = 24


@dataclass
class Choice:
    """What the events of one choice added up to."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt: tuple[TokenLogprob | None, ...] | None = None
    finish: Finish | None = None


class Stack:
    """The parts as the server joins them, over a pool of `rows` rows per lane; freed pages turn to NaN."""

    def __init__(
        self,
        model: CausalLM,
        policy: str = "full",
        *,
        rows: int = 512,
        page_size: int = 4,
        vocab_size: int | None = None,
        **limits: Any,
    ) -> None:
        config = model.config
        loaded = {name: policy_for(config, name) for name in {policy, "full", "streaming"}}
        settings: dict[str, Any] = {
            "num_lanes": config.num_lanes,
            "num_pages": 1 + config.num_lanes * rows // page_size,
            "page_size": page_size,
            "max_model_len": 200,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "policies": {name: _rules(each) for name, each in loaded.items()},
            "default_policy": policy,
            "default_budget": 1.0,
            "debug_pages": True,
        }
        self.scheduler = Scheduler(SchedulerConfig(**(settings | limits)))
        self.mirror = TableMirror(self.scheduler.config.max_num_seqs, config.num_layers, config.num_kv_heads, page_size)
        notes = loaded[policy].observation, loaded[policy].scorer
        pool = KVPool(settings["num_pages"], page_size, config.head_dim, load_format("float32"), *notes)
        pool.poison(torch.arange(1, settings["num_pages"]))
        drivers = {
            name: EvictionDriver(each, SINKS, RECENT, each.defaults.lanes, config.num_kv_heads, each.defaults.pool)
            for name, each in loaded.items()
        }
        self.runner = ModelRunner(
            model, pool, self.mirror, load_backend("reference", model.config.head_dim), drivers, vocab_size
        )

    def serve(self, *requests: GenerationRequest) -> list[Choice]:
        """Run `requests` to their ends; all choices in order. Books are checked after every step."""
        sequences = [sequence for request in requests for sequence in self.scheduler.add(request)]
        choices = {id(sequence): Choice() for sequence in sequences}
        while (plan := self.scheduler.plan()) is not None:
            self.scheduler.apply(self.runner.execute(plan))
            self.scheduler.check_integrity()
            for sequence in sequences:
                if sequence.slot is not None and sequence.adopted is None:
                    assert np.array_equal(self.mirror.kept(sequence.slot), sequence.table.kept)
            for sequence, event in self.scheduler.take_events():
                choice = choices[id(sequence)]
                choice.tokens.extend(event.tokens)
                choice.logprobs.extend(event.logprobs)
                choice.prompt = event.prompt_logprobs or choice.prompt
                choice.finish = event.finish
        assert all(choice.finish is not None for choice in choices.values())
        memory = self.scheduler.memory
        assert memory.num_available == memory.allocator.num_usable
        return list(choices.values())


def policy_for(config: ModelConfig, name: str) -> Policy:
    """The policy called `name`, by random scores where it needs a calibration."""
    policy = load_policy(name)
    if not isinstance(policy, CalibratedPolicy):
        return policy
    features = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    shape, random = (config.num_layers, config.num_kv_heads, 2), torch.Generator().manual_seed(5)
    scorer = LinearScorer(torch.randn(*shape, features, generator=random), torch.randn(*shape, generator=random))
    return policy.calibrated(Calibration(scorer, LaneProfile(torch.ones(1), torch.ones(1, config.num_lanes))))


def _rules(policy: Policy) -> EvictionRules | None:
    defaults = policy.defaults
    if not policy.evicts:
        return None
    return EvictionRules(SINKS + RECENT + 1, defaults.drop, defaults.ceiling, defaults.streaming)


@pytest.fixture(scope="module")
def original() -> PreTrainedModel:
    """transformers' model."""
    return tiny_llama(num_hidden_layers=2)


@pytest.fixture(scope="module")
def model(original: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    """The same, as we read it."""
    return load_model(Checkpoint(saved(original, tmp_path_factory.mktemp("llama"))))


def _request(
    length: int, max_tokens: int = NEW, *, seed: int = 0, n: int = 1, kv: dict[str, Any] | None = None, **params: Any
) -> GenerationRequest:
    settings = SamplingParams(**({"max_tokens": max_tokens, "temperature": 0.0, "seed": seed} | params))
    return GenerationRequest(f"{length}-{seed}", tuple(prompt(length, seed=length)), settings, n, **(kv or {}))


def _requests() -> list[GenerationRequest]:
    return [_request(length) for length in LENGTHS]


@pytest.fixture(scope="module")
def greedy(original: PreTrainedModel) -> list[list[int]]:
    """What transformers generates after each prompt."""
    continuations = []
    for length in LENGTHS:
        ids = torch.tensor([prompt(length, seed=length)])
        settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        output = original.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        continuations.append(output[0, length:].tolist())
    return continuations


def _tokens(choices: Sequence[Choice]) -> list[list[int]]:
    return [choice.tokens for choice in choices]


def test_greedy_tokens_are_those_of_transformers(model: CausalLM, greedy: list[list[int]]) -> None:
    assert len({tuple(tokens) for tokens in greedy}) == len(LENGTHS)
    assert [Stack(model).serve(request)[0].tokens for request in _requests()] == greedy


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="batch"),
        pytest.param({"debug_pages": False}, id="pages-not-poisoned"),
        pytest.param({"page_size": 1}, id="pages-of-1"),
        pytest.param({"page_size": 16}, id="pages-of-16"),
        pytest.param({"max_num_batched_tokens": 5}, id="chunks-of-a-few"),
        pytest.param({"max_num_batched_tokens": 2, "max_num_seqs": 1}, id="one-at-a-time"),
        pytest.param({"max_num_batched_tokens": 13, "max_num_seqs": 2, "page_size": 2}, id="two-at-a-time"),
        pytest.param({"policy": "scissorhands"}, id="no-pressure"),
        pytest.param({"policy": "h2o", "evict": "always"}, id="budget-of-all"),
        pytest.param({"policy": "random", "evict": "always", "default_budget": 60}, id="budget-never-reached"),
        pytest.param({"policy": "scissorhands-paper", "default_budget": 54}, id="ceiling-just-reached"),
    ],
)
def test_tokens_do_not_depend_on_how_they_are_computed(
    changes: dict[str, Any], model: CausalLM, greedy: list[list[int]]
) -> None:
    assert _tokens(Stack(model, **changes).serve(*_requests())) == greedy


@pytest.mark.parametrize("page_size", [1, 4])
def test_preempted_sequences_go_on_as_if_nothing_had_happened(
    page_size: int, model: CausalLM, greedy: list[list[int]]
) -> None:
    stack = Stack(model, rows=60, page_size=page_size)
    assert _tokens(stack.serve(*_requests())) == greedy
    assert stack.scheduler.stats().preemptions_total > 0


def test_slots_and_pages_are_used_again_without_a_trace(model: CausalLM, greedy: list[list[int]]) -> None:
    stack = Stack(model, rows=80, max_num_seqs=2)
    for _ in range(3):
        assert _tokens(stack.serve(*_requests())) == greedy


def test_an_aborted_sequence_leaves_its_neighbours_alone(model: CausalLM, greedy: list[list[int]]) -> None:
    stack = Stack(model, max_num_seqs=2)
    (victim,) = stack.scheduler.add(_request(40, 100))
    for _ in range(3):
        plan = stack.scheduler.plan()
        assert plan is not None
        stack.scheduler.apply(stack.runner.execute(plan))
    stack.scheduler.end(victim, "abort")
    stack.scheduler.take_events()
    assert _tokens(stack.serve(*_requests())) == greedy


@pytest.mark.parametrize(
    "changes",
    [{}, {"max_num_batched_tokens": 7}, {"rows": 60}, {"page_size": 16}],
    ids=["batch", "chunks", "preempted", "pages"],
)
def test_sampled_choices_depend_on_seed_and_index_alone(changes: dict[str, Any], model: CausalLM) -> None:
    params = {"temperature": 1.0, "n": 2, "top_p": 0.95, "repetition_penalty": 1.2, "frequency_penalty": 0.3}
    requests = [_request(length, seed=length, **params) for length in LENGTHS[:3]]
    alone = [choice.tokens for request in requests for choice in Stack(model).serve(request)]
    assert len({tuple(tokens) for tokens in alone}) == 6
    stack = Stack(model, **changes)
    assert _tokens(stack.serve(*requests)) == alone
    assert (stack.scheduler.stats().preemptions_total > 0) == ("rows" in changes)


def _log_softmax(original: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    return hf_logits(original, tokens).log_softmax(-1)


def _check_logprob(found: TokenLogprob, token: int, expected: torch.Tensor, num_top: int) -> None:
    assert found.token == token
    assert found.logprob == pytest.approx(float(expected[token]), abs=1e-4)
    best = expected.topk(num_top)
    assert [alternative for alternative, _ in found.top] == best.indices.tolist()
    assert [logprob for _, logprob in found.top] == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [{}, {"max_num_batched_tokens": 7}, {"max_num_batched_tokens": 200}, {"rows": 96, "max_num_batched_tokens": 20}],
    ids=["batch", "chunks", "one-chunk", "preempted"],
)
@pytest.mark.parametrize("max_tokens", [0, 20])
def test_logprobs_are_those_of_transformers(
    changes: dict[str, Any], max_tokens: int, model: CausalLM, original: PreTrainedModel
) -> None:
    requests = [_request(length, max_tokens, logprobs=3, prompt_logprobs=2) for length in (70, 12)]
    stack = Stack(model, **changes)
    for request, choice in zip(requests, stack.serve(*requests), strict=True):
        expected = _log_softmax(original, [*request.prompt, *choice.tokens])
        assert choice.prompt is not None
        assert choice.prompt[0] is None
        assert len(choice.prompt) == len(request.prompt)
        for place, found in enumerate(choice.prompt[1:]):
            assert found is not None
            _check_logprob(found, request.prompt[place + 1], expected[place], 2)
        assert len(choice.logprobs) == len(choice.tokens) == max_tokens
        for place, found in enumerate(choice.logprobs, start=len(request.prompt) - 1):
            _check_logprob(found, choice.tokens[place - len(request.prompt) + 1], expected[place], 3)
    assert (stack.scheduler.stats().preemptions_total > 0) == ("rows" in changes and max_tokens > 0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("page_size", [1, 4])
def test_every_policy_evicts_to_the_end_of_its_sequences(policy: str, page_size: int, model: CausalLM) -> None:
    stack = Stack(model, policy, evict="always", default_budget=20, page_size=page_size, max_num_batched_tokens=24)
    choices = stack.serve(*[_request(length, 60, logprobs=1) for length in (70, 1, 25)])
    evicts = load_policy(policy).evicts
    for choice in choices:
        assert len(choice.tokens) == 60
        assert all(math.isfinite(value) for logprob in choice.logprobs for _, value in logprob.top)
        assert choice.finish is not None
        assert (choice.finish.usage.rows_evicted > 0) == evicts
        assert choice.finish.usage.rows_kept <= 25 or not evicts
    assert (stack.scheduler.stats().compressions_total["budget"] > 0) == evicts


@pytest.mark.parametrize("policy", [name for name in POLICIES if load_policy(name).evicts])
def test_memory_pressure_evicts_before_it_preempts(policy: str, model: CausalLM) -> None:
    stack = Stack(model, policy, rows=100, default_budget=12)
    choices = stack.serve(*[_request(length, 50, logprobs=0) for length in (40, 30, 20)])
    assert all(math.isfinite(logprob.logprob) for choice in choices for logprob in choice.logprobs)
    stats = stack.scheduler.stats()
    assert stats.compressions_total["pressure" if not load_policy(policy).defaults.ceiling else "budget"] > 0
    assert stats.preemptions_total == 0


def _masked_logprobs(
    original: PreTrainedModel, length: int, tokens: Sequence[int], budget: int, high: int
) -> torch.Tensor:
    """transformers on `tokens`, each seeing only what a streaming cache of `budget` to `high` rows still held."""
    rows, mask = [], torch.full((len(tokens), len(tokens)), -math.inf)
    for place in range(len(tokens)):
        rows.append(place)
        mask[place, rows] = 0.0
        if place >= length - 1 and len(rows) > high:
            rows = rows[:SINKS] + rows[SINKS - budget :]
    with torch.inference_mode():
        return original(torch.tensor([tokens]), attention_mask=mask[None, None]).logits[0].log_softmax(-1)


@pytest.mark.parametrize("length", [1, 50])
@pytest.mark.parametrize("default", ["streaming", "scissorhands"])
def test_eviction_is_as_if_the_evicted_were_masked(
    length: int, default: str, model: CausalLM, original: PreTrainedModel
) -> None:
    stack = Stack(model, default, evict="always", max_num_batched_tokens=200)
    request = _request(length, 60, logprobs=1, kv={"kv_policy": "streaming", "kv_budget": 16})
    neighbours = [_request(30, 40, seed=1), _request(60, 20, seed=2, kv={"kv_budget": 10})]
    choice = stack.serve(request, *neighbours)[0]
    expected = _masked_logprobs(original, length, [*request.prompt, *choice.tokens], budget=16, high=17)
    for place, found in enumerate(choice.logprobs, start=length - 1):
        _check_logprob(found, int(expected[place].argmax()), expected[place], 1)
    assert choice.tokens != Stack(model).serve(_request(length, 60))[0].tokens


class Alternating:
    """A grammar of two tokens by turns; its constraints check that they hear every token of their choice."""

    def __init__(self, first: int, second: int) -> None:
        self._pair = (first, second)
        self._foreseen: tuple[int, ...] | None = None

    def begin(self) -> Alternating:
        return Alternating(*self._pair)

    def foresee(self, output: tuple[int, ...]) -> None:
        self._foreseen = output

    def allowed(self, output: tuple[int, ...]) -> npt.NDArray[np.int32]:
        assert output == self._foreseen, "what the step will ask is known before its forward"
        assert output == (self._pair * (len(output) // 2 + 1))[: len(output)]
        words = np.zeros(VOCABULARY // 32 + 1, dtype=np.uint32)
        token = self._pair[len(output) % 2]
        words[token // 32] = 1 << token % 32
        return words.view(np.int32)


@pytest.mark.parametrize("rows", [400, 60], ids=["room", "preempted"])
def test_a_grammar_rules_each_choice_of_its_request_and_nobody_else(
    rows: int, model: CausalLM, greedy: list[list[int]]
) -> None:
    stack = Stack(model, rows=rows)
    ruled = replace(_request(10, 6, n=2, seed=1), grammar=Alternating(3, 40))
    choices = _tokens(stack.serve(*_requests(), ruled))
    assert choices == [*greedy, [3, 40, 3, 40, 3, 40], [3, 40, 3, 40, 3, 40]]
    assert (stack.scheduler.stats().preemptions_total > 0) == (rows == 60)


def test_rows_beyond_the_vocabulary_are_never_drawn(model: CausalLM) -> None:
    stack = Stack(model, vocab_size=7)
    bias = tuple((token, 100.0) for token in range(7))
    (choice,) = stack.serve(_request(10, 20, temperature=2.0, logit_bias=bias, logprobs=9))
    assert max(choice.tokens) < 7
    assert all(len(logprob.top) == 7 for logprob in choice.logprobs)
