"""The sampler against formulas written out in numpy, and what it promises: tokens depend on nothing but their order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from models.adjustments import adjusted
from models.drawing import Row, best_ids, candidates, draw, uniform
from models.logprobs import logprob_of
from models.sampler import sample
from scheduler.plan import SampleOrder, WorkResult
from scheduler.request import ConstraintError, SamplingParams, Unsatisfiable

INF = math.inf
Floats = npt.NDArray[np.float64]


def _params(**changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=1, **changes)


def _order(
    *,
    step: int = 0,
    choice: int = 0,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    banned: Sequence[int] = (),
    **changes: Any,
) -> SampleOrder:
    return SampleOrder(_params(**changes), choice, step, tuple(prompt), tuple(output), tuple(banned))


def _random_logits(size: int, scale: float, seed: int = 0) -> Row:
    return np.random.default_rng(seed).normal(scale=scale, size=size).astype(np.float32)


def _row(logits: Sequence[float]) -> Row:
    return np.array(logits, dtype=np.float32)


def _sample(rows: Sequence[Row] | Row, orders: Sequence[SampleOrder]) -> list[WorkResult]:
    return sample(torch.from_numpy(np.stack(rows)), orders)


def _softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def _filtered(logits: Row, params: SamplingParams) -> Floats:
    """The distribution to draw from, filter by filter as their definitions say, [vocab]."""
    scaled = logits.astype(np.float64) / params.temperature
    probabilities = _softmax(scaled)
    order = np.argsort(-probabilities)
    if params.top_k > 0:
        probabilities[order[params.top_k :]] = 0.0
        probabilities /= probabilities.sum()
    before = np.cumsum(probabilities[order]) - probabilities[order]
    if params.top_p < 1.0:
        probabilities[order[before >= params.top_p]] = 0.0
    shares = probabilities / probabilities.max()
    probabilities[shares < params.min_p] = 0.0
    return probabilities / probabilities.sum()


def _nudged(params: SamplingParams, factor: float) -> SamplingParams:
    """`params` whose cuts lie a little elsewhere."""
    top_p = params.top_p if params.top_p == 1.0 else params.top_p * factor
    return replace(params, top_p=top_p, min_p=min(1.0, params.min_p * factor))


def _distribution(logits: Row, params: SamplingParams) -> Floats:
    """What our sampler draws from, [vocab]."""
    tokens, weights = candidates(logits / np.float32(params.temperature), params)
    dense = np.zeros(logits.size)
    dense[slice(None) if tokens is None else tokens] = weights
    return dense / dense.sum()


@given(
    size=st.integers(1, 700),
    scale=st.sampled_from([0.01, 0.5, 3.0, 10.0]),
    seed=st.integers(0, 2**31),
    temperature=st.floats(0.2, 3.0),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 300, 1000]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
)
def test_filters_leave_what_their_definitions_say(size: int, scale: float, seed: int, **filters: Any) -> None:
    logits, params = _random_logits(size, scale, seed), _params(**filters)
    expected = _filtered(logits, params)
    for factor in (1 - 1e-4, 1 + 1e-4):  # float32 cannot say on which side of a cut its very neighbours lie
        assume(np.array_equal(_filtered(logits, _nudged(params, factor)), expected))
    np.testing.assert_allclose(_distribution(logits, params), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1e-3])
def test_a_nucleus_wider_than_the_shortlist_is_found_whole(scale: float) -> None:
    drawn_from = _distribution(_random_logits(1000, scale), _params(top_p=0.7505))
    assert np.count_nonzero(drawn_from) == pytest.approx(751, abs=1)


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 3},
        {"top_p": 0.8},
        {"min_p": 0.3},
        {"top_k": 5, "top_p": 0.9},
    ],
    ids=str,
)
def test_tokens_come_as_often_as_they_should(filters: dict[str, float]) -> None:
    logits, draws = _random_logits(8, 1.5, seed=4), 4000
    order = _order(seed=11, **filters)
    expected = _filtered(logits, order.params)
    found = Counter(draw(logits, replace(order, step=step)) for step in range(draws))
    for token, probability in enumerate(expected):
        spread = math.sqrt(draws * probability * (1 - probability))
        assert abs(found[token] - draws * probability) <= 4 * spread
        assert found[token] == 0 or probability > 0


def test_random_numbers_are_even_and_unrelated() -> None:
    numbers = np.array(
        [
            uniform(seed, choice, step)
            for seed in (-(2**63), 0, 2**63 - 1)
            for choice in range(10)
            for step in range(300)
        ]
    )
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert np.unique(numbers).size == numbers.size
    np.testing.assert_allclose(np.histogram(numbers, bins=10, range=(0, 1))[0], 900, atol=120)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.05


def test_seeds_mean_the_same_in_every_version() -> None:
    numbers = [uniform(0, 0, 1), uniform(1, 0, 1), uniform(2, 0, 1), uniform(-5, 3, 9)]
    assert numbers == pytest.approx([0.627000, 0.571306, 0.359769, 0.020971], abs=1e-6)


@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    choice=st.integers(0, 127),
    step=st.integers(0, 10**6),
    neighbours=st.integers(0, 5),
)
def test_a_token_does_not_depend_on_its_batch(seed: int, choice: int, step: int, neighbours: int) -> None:
    order = _order(seed=seed, choice=choice, step=step, top_p=0.9, logprobs=2)
    logits = _random_logits(50, 2.0, seed=step)
    alone = _sample([logits], [order])[0]
    others = [_random_logits(50, 5.0, seed=number) for number in range(neighbours)]
    orders = [
        _order(seed=number, temperature=0.5, output=(1, 2), frequency_penalty=1.0) for number in range(neighbours)
    ]
    assert _sample([*others, logits], [*orders, order])[-1] == alone


def test_seed_choice_and_step_all_matter() -> None:
    logits = _row([0.0] * 1000)
    orders = [_order(seed=seed, choice=choice, step=step) for seed in (0, 1) for choice in (0, 1) for step in (0, 1)]
    assert len({draw(logits, order) for order in orders}) == len(orders)


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=300), st.floats(0, 9e-6))
def test_greedy_takes_the_best_and_of_equals_the_first(logits: list[float], temperature: float) -> None:
    assert draw(_row(logits), _order(temperature=temperature)) == logits.index(max(logits))


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=40), st.integers(0, 99))
def test_ties_share_evenly_or_are_cut_without_harm(logits: list[float], step: int) -> None:
    row, ones = _row(logits), [token for token, logit in enumerate(logits) if logit == max(logits)]
    assert draw(row, _order(step=step, top_k=1)) in ones
    assert draw(row, _order(step=step, top_p=1e-9)) in ones
    assert draw(row, _order(step=step, min_p=1.0)) in ones
    tokens, weights = candidates(row, _params(top_k=len(ones)))
    assert tokens is not None
    assert sorted(tokens.tolist()) == ones
    assert weights.tolist() == pytest.approx([1 / len(ones)] * len(ones))


EXTREMES = {
    "infinite": [0.0, INF, 1.0, -INF],
    "two-infinite": [INF, 5.0, INF],
    "largest": [3.4e38, -3.4e38, 3.3e38],
    "all-but-one-banned": [-INF, -INF, 0.5, -INF],
    "not-a-number": [math.nan, 1.0, 0.0, -INF],
    "far-below-zero": [-3e38, -3.1e38],
    "one-token": [7.0],
}


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}, {"top_k": 3, "top_p": 0.9}], ids=str
)
@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-6, 1e-4, 1.0, 2.0, 1e6])
@pytest.mark.parametrize("logits", EXTREMES.values(), ids=EXTREMES)
def test_extremes_give_tokens_that_are_possible(
    logits: list[float], temperature: float, filters: dict[str, float]
) -> None:
    row = _row(logits)
    possible = {token for token, logit in enumerate(logits) if logit > -INF}
    best = {token for token in possible if logits[token] == max(logits[token] for token in possible)}
    drawn = {draw(row, _order(temperature=temperature, step=step, **filters)) for step in range(20)}
    assert drawn <= (best if temperature <= 1e-4 or INF in logits else possible)


@pytest.mark.parametrize("filters", [{"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}], ids=str)
def test_a_row_without_any_number_gives_no_token(filters: dict[str, float]) -> None:
    for row in (_row([math.nan] * 5), _row([-INF] * 5)):
        assert draw(row, _order(**filters)) is None


def _penalised(logits: Row, order: SampleOrder) -> Floats:
    """Penalties and biases, written out token by token."""
    params, result = order.params, logits.astype(np.float64)
    for token in range(result.size):
        if token in order.prompt or token in order.output:
            penalty = params.repetition_penalty
            result[token] = result[token] / penalty if result[token] > 0 else result[token] * penalty
        count = order.output.count(token)
        result[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        result[token] += sum(bias for biased, bias in params.logit_bias if biased == token)
        if token in order.banned:
            result[token] = -INF
    return result


ids = st.lists(st.integers(0, 11), max_size=20).map(tuple)


@given(
    prompt=ids,
    output=ids,
    banned=st.lists(st.integers(0, 11), max_size=3).map(tuple),
    logit_bias=st.dictionaries(st.integers(0, 11), st.floats(-100, 100)).map(lambda bias: tuple(bias.items())),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3, 10.0]),
    frequency_penalty=st.sampled_from([-2.0, 0.0, 0.7]),
    presence_penalty=st.sampled_from([-1.5, 0.0, 2.0]),
)
def test_penalties_and_biases_follow_their_formulas(**changes: Any) -> None:
    logits, order = _random_logits(12, 4.0), _order(**changes)
    before = logits.copy()
    np.testing.assert_allclose(adjusted(logits, order), _penalised(logits, order), rtol=1e-4, atol=1e-4)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"banned": (3,)}, 1, id="banned"),
        pytest.param({"logit_bias": ((0, 100.0),)}, 0, id="bias-up"),
        pytest.param({"logit_bias": ((3, -100.0), (1, -100.0))}, 0, id="bias-down"),
        pytest.param({"prompt": (3,), "repetition_penalty": 4.0}, 1, id="repetition-in-prompt"),
        pytest.param({"prompt": (3,), "output": (1,), "presence_penalty": 2.0}, 3, id="presence-skips-prompt"),
        pytest.param({"output": (3, 3, 3), "frequency_penalty": 0.7}, 1, id="frequency"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.02])
def test_sampling_sees_penalties_biases_and_bans(changes: dict[str, Any], expected: int, temperature: float) -> None:
    logits = [_row([0.0, 1.0, -1.0, 2.0])]
    assert _sample(logits, [_order(temperature=temperature, **changes)]) == [WorkResult(expected)]


def test_banned_tokens_never_come_however_hot() -> None:
    order = _order(temperature=2.0, banned=(0, 2), logit_bias=((0, 100.0),))
    assert {_sample([_row([0.0] * 4)], [replace(order, step=step)])[0].token for step in range(50)} == {1, 3}


def test_logprobs_are_of_the_model_itself() -> None:
    logits = _random_logits(30, 3.0)
    expected = np.log(_softmax(logits.astype(np.float64)))
    order = _order(temperature=0.3, top_k=2, banned=(int(logits.argmax()),), logit_bias=((4, 50.0),), logprobs=5)
    (result,) = _sample([logits], [order])
    token, logprob = result.token, result.logprob
    assert token == 4
    assert logprob is not None
    assert logprob.token == token
    assert logprob.logprob == pytest.approx(expected[token], abs=1e-5)
    best = np.argsort(-expected)[:5]
    assert [token for token, _ in logprob.top] == best.tolist()
    assert [value for _, value in logprob.top] == pytest.approx(expected[best], abs=1e-5)


def test_a_token_has_the_same_logprob_among_the_alternatives() -> None:
    """lm-eval tells by that whether a token was the likeliest."""
    for seed in range(50):
        row = _random_logits(40, 3.0, seed)
        for token in best_ids(row, 5).tolist():
            for scored in (logprob_of(row, token, 5), logprob_of(row, token, 0, (token, 1))):
                assert dict(scored.top)[token] == scored.logprob


def test_more_alternatives_than_there_are_tokens() -> None:
    for seed, token in enumerate([0, 3, 1]):
        row = _random_logits(4, 2.0, seed) + np.float32(1e4)
        logprob = logprob_of(row, token, 9)
        expected = np.log(_softmax(row.astype(np.float64)))
        assert logprob.logprob == pytest.approx(expected[token], abs=2e-3)  # float32 has no more digits at 10,000
        assert sorted(alternative for alternative, _ in logprob.top) == [0, 1, 2, 3]
        assert math.fsum(math.exp(value) for _, value in logprob.top) == pytest.approx(1, abs=5e-3)
        assert logprob_of(row, token, 0).top == ()


@pytest.mark.parametrize(("number", "expected"), [(0.0, 1), (1 - 2**-53, 4), (0.5, 4), (0.4999, 1)])
def test_no_random_number_draws_a_token_of_no_weight(
    number: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.drawing.uniform", lambda seed, choice, step: number)
    assert draw(_row([-INF, 0.0, -INF, -INF, 0.0, -INF]), _order()) == expected


class OnlyTokens:
    """A constraint that always allows the same tokens."""

    def __init__(self, *tokens: int, num_words: int = 1) -> None:
        self._words = np.zeros(num_words, dtype=np.uint32)
        for token in tokens:
            self._words[token // 32] |= np.uint32(1 << token % 32)

    def foresee(self, output: tuple[int, ...]) -> None:
        pass

    def allowed(self, output: tuple[int, ...]) -> npt.NDArray[np.int32]:
        return self._words.view(np.int32)


class Broken:
    """A constraint that gives up."""

    def foresee(self, output: tuple[int, ...]) -> None:
        pass

    def allowed(self, output: tuple[int, ...]) -> npt.NDArray[np.int32]:
        raise ConstraintError("too deep")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"allowed_token_ids": (2, 40)}, {2, 40}, id="allowed"),
        pytest.param({"allowed_token_ids": (2, 40), "banned": (2,)}, {40}, id="allowed-but-banned"),
        pytest.param({"allowed_token_ids": (2,), "logit_bias": ((5, 100.0),)}, {2}, id="allowed-beats-bias"),
    ],
)
def test_nothing_but_the_allowed_tokens_comes(changes: dict[str, Any], expected: set[int], temperature: float) -> None:
    order = _order(temperature=temperature, **changes)
    rows = [_row([0.0] * 50)]
    drawn = {_sample(rows, [replace(order, step=step)])[0].token for step in range(40)}
    assert drawn == expected or (temperature == 0 and drawn < expected)


def test_a_constraint_beats_every_bias() -> None:
    order = _order(temperature=1.0, logit_bias=((0, 100.0),))
    order = replace(order, constraint=OnlyTokens(1, 33, num_words=2))
    drawn = {_sample([_row([0.0] * 70)], [replace(order, step=step)])[0].token for step in range(40)}
    assert drawn == {1, 33}


def test_a_bad_word_is_never_completed() -> None:
    bad = ((3,), (5, 6))
    row = [_row([0.0, 1.0, 2.0, 9.0, 3.0, 4.0, 8.0])]
    assert _sample(row, [_order(temperature=0.0, bad_words=bad)])[0].token == 6
    assert _sample(row, [_order(temperature=0.0, bad_words=bad, output=(1, 5))])[0].token == 5
    assert _sample(row, [_order(temperature=0.0, bad_words=bad, output=(5, 1))])[0].token == 6


@pytest.mark.parametrize(
    "row",
    [[math.nan] * 4, [-INF] * 4, [0.0, 1.0, math.nan, -INF]],
    ids=["nan", "minus-infinity", "banned-or-nothing"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_leaves_no_token_is_an_error_of_its_own(row: list[float], temperature: float) -> None:
    order = _order(temperature=temperature, banned=(0, 1))
    neighbour = _order(temperature=0.0)
    broken, healthy = _sample([_row(row), _row([0.0, 3.0, 1.0, 2.0])], [order, neighbour])
    assert broken.token is None
    assert isinstance(broken.error, str)
    assert healthy == WorkResult(1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("best", [3.0, math.nan])
def test_demands_that_leave_no_token_are_the_requests_own_fault(best: float, temperature: float) -> None:
    row = _row([0.0, best, 1.0, 2.0])
    form = OnlyTokens(1, 2, num_words=1)
    orders = [
        _order(temperature=temperature, banned=(0, 1, 2, 3)),
        _order(temperature=temperature, allowed_token_ids=(1,), bad_words=((1,),)),
        replace(_order(temperature=temperature, banned=(1,), bad_words=((2,),)), constraint=form),
    ]
    assert all(isinstance(result.error, Unsatisfiable) for result in _sample([row] * 3, orders))


def test_a_constraint_that_gives_up_says_why_and_ends_nobody_else() -> None:
    order = replace(_order(temperature=0.0), constraint=Broken())
    assert _sample(np.eye(2, dtype=np.float32), [order, _order(temperature=0.0)]) == [
        WorkResult(error=Unsatisfiable("too deep")),
        WorkResult(1),
    ]


def test_alternatives_that_were_asked_for_replace_the_likeliest() -> None:
    logits = _random_logits(30, 3.0)
    expected = np.log(_softmax(logits.astype(np.float64)))
    scored = logprob_of(logits, 4, 2, (9, 0, 17))
    assert {token for token, _ in scored.top} == {0, 9, 17}
    assert [value for _, value in scored.top] == pytest.approx(sorted(expected[[0, 9, 17]], reverse=True), abs=1e-5)


def test_of_equals_the_first_are_the_best_and_what_is_banned_is_none() -> None:
    row = _row([1.0, 3.0, -INF, 3.0, 3.0, 0.0, -INF])
    assert [best_ids(row, count).tolist() for count in (0, 2, 4, 7)] == [[], [1, 3], [1, 3, 4, 0], [1, 3, 4, 0, 5]]


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=900), st.floats(0, 1, exclude_max=True))
def test_a_wide_row_is_searched_as_a_running_sum_says(weights: list[float], number: float) -> None:
    assume(any(weights))
    with np.errstate(divide="ignore"):
        row = np.log(np.array(weights, dtype=np.float32))
    sums = np.cumsum(weights)
    place = draw(row, _order(seed=int(number * 2**40)))
    point = uniform(int(number * 2**40), 0, 0) * sums[-1]
    assert place is not None
    assert weights[place] > 0
    assert sums[place] >= point * (1 - 1e-5) - 1e-5
    assert sums[place] - weights[place] <= point * (1 + 1e-5) + 1e-5
