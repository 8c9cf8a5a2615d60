"""Every policy's score against its formula, restated row by row; and what they keep of a lane where that is plain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paged_kv.eviction import EvictionDriver, Target
from paged_kv.plugins import names
from paged_kv.policy import Policy, ScoreView, load_policy
from paged_kv.value_weighting import ValueWeighted
from tests.paged_kv.lanes import HEAD_DIM, World

Numbers = np.ndarray[Any, np.dtype[np.float64]]
QUERIES, KEEP = 22, 24


@dataclass(frozen=True)
class Lane:
    """What the formulas are about: `keys`, `values` [rows, HEAD_DIM], `weights` [QUERIES, rows] that sum up to 1."""

    keys: Numbers
    values: Numbers
    weights: Numbers


def length(vector: Numbers) -> float:
    return float(np.sqrt((vector * vector).sum()))


def nearby(scores: list[float], width: int) -> list[float]:
    return [max(scores[max(0, row - width // 2) : row + width // 2 + 1]) for row in range(len(scores))]


def knorm(lane: Lane) -> list[float]:
    return [-length(key) for key in lane.keys]


def keydiff(lane: Lane) -> list[float]:
    mean = sum(key / length(key) for key in lane.keys) / len(lane.keys)
    return [-float(key @ mean) / (length(key) * length(mean)) for key in lane.keys]


def pagedeviction(lane: Lane) -> list[float]:
    return [length(value) / length(key) for key, value in zip(lane.keys, lane.values, strict=True)]


def h2o(lane: Lane) -> list[float]:
    sums = [sum(column) for column in lane.weights.T]
    return sums[: -(KEEP // 2)] + [float("inf")] * (KEEP // 2)


def kvc(lane: Lane) -> list[float]:
    return [sum(column**2) for column in lane.weights.T]


def tova(lane: Lane) -> list[float]:
    return list(lane.weights[-1])


def snapkv(lane: Lane) -> list[float]:
    """Of 22 queries the last span of 4 has 2, so the window of 16 holds 14."""
    return nearby([sum(column[-14:]) for column in lane.weights.T][:-16], 15) + [float("inf")] * 16


def rkv(lane: Lane) -> list[float]:
    """Of 22 queries the last span of 2 is full, so the window holds 8."""
    sums, directions = lane.weights[-8:].sum(axis=0), np.array([key / length(key) for key in lane.keys])
    attention = nearby(list(sums / sums.sum())[:-8], 7)
    alike = directions @ directions.T
    np.fill_diagonal(alike, 0.0)
    for row in alike:
        row[np.flatnonzero(row > 0.5)[-1:]] = 0.0
    redundancy = np.exp(alike.mean(axis=0))
    redundancy /= redundancy.sum()
    scores = [0.1 * a - 0.9 * r for a, r in zip(attention, redundancy, strict=False)]
    return scores + [float("inf")] * 8


def caote(attention: list[float], lane: Lane) -> list[float]:
    shares = [a / sum(attention) for a in attention]
    output = sum(a * value for a, value in zip(shares, lane.values, strict=True))
    return [a / (1 - a) * length(output - value) for a, value in zip(shares, lane.values, strict=True)]


def caote_h2o(lane: Lane) -> list[float]:
    return caote([sum(column) for column in lane.weights.T], lane)[: -(KEEP // 2)] + [float("inf")] * (KEEP // 2)


def caote_snapkv(lane: Lane) -> list[float]:
    return nearby(caote([sum(column[-14:]) for column in lane.weights.T], lane)[:-16], 15) + [float("inf")] * 16


def caote_tova(lane: Lane) -> list[float]:
    return caote(tova(lane), lane)


FORMULAS: dict[str, Callable[[Lane], list[float]]] = {
    "caote-h2o": caote_h2o,
    "caote-snapkv": caote_snapkv,
    "caote-tova": caote_tova,
    "h2o": h2o,
    "keydiff": keydiff,
    "knorm": knorm,
    "kvc": kvc,
    "pagedeviction": pagedeviction,
    "rkv": rkv,
    "snapkv": snapkv,
    "tova": tova,
}


def has_formula(policy: Policy) -> bool:
    """Scissorhands, which counts steps, has an oracle of its own."""
    return policy.reads_rows or (policy.observation is not None and policy.observation.measure != "unimportant")


def test_every_policy_that_reads_rows_or_weights_has_its_formula_here() -> None:
    assert {name for name in names("paged_kv.policies") if has_formula(load_policy(name))} == set(FORMULAS)


def weigh(world: World, kept: list[int]) -> list[Tensor]:
    """Let QUERIES queries give the rows of slot 0 random weights; returns them, [QUERIES, rows] for each lane."""
    weights = [(2 * world.normal(QUERIES, count)).softmax(-1) for count in kept]
    observation, slots = world.pool.observation, world.mirror.slots_of_rows(0)
    if observation is not None:
        for lane, given in enumerate(weights):
            measured = observation.measured(given, torch.full((QUERIES, 1), kept[lane]))
            rows = slots[lane, : kept[lane]]
            observation.note(world.pool.state.flatten(0, 1), rows, measured, torch.arange(QUERIES))
    return weights


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("page_format", ["float32", "int4"])
def test_best_rows_by_the_formula_survive(name: str, page_format: str) -> None:
    """Lanes of different lengths, stale rows full of NaN behind them, and keys that may be stored rotated."""
    policy, kept = load_policy(name), [60, 39, 50]
    world = World(num_layers=1, kv_heads=3, page_format=page_format, num_pages=100, observation=policy.observation)
    world.append({0: 60})
    world.truncate(0, kept)
    weights = weigh(world, kept)
    before = [list(lane) for lane in world.rows[0]]
    driver = EvictionDriver(policy, sinks=0, recent=0, lanes="uniform", kv_heads=3, pool=policy.defaults.pool)
    left = driver.compress(world.pool, world.mirror, Target(0, 3 * KEEP, QUERIES))
    assert left.tolist() == [KEEP] * 3
    basis = torch.eye(HEAD_DIM) if world.pool.basis is None else world.pool.basis.keys[0]
    slots = world.mirror.slots_of_rows(0)
    for lane, rows in enumerate(before):
        keys, values = (torch.stack(part).double().numpy() for part in zip(*rows, strict=True))
        scores = FORMULAS[name](Lane(keys, values, weights[lane].double().numpy()))
        best = sorted(sorted(range(len(rows)), key=lambda row: (scores[row], row))[-KEEP:])
        survivors = world.pool.format.decode(world.pool.keys.flatten(0, 1)[slots[lane]]) @ basis.T
        torch.testing.assert_close(survivors, torch.from_numpy(keys[best]).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("counts", [[1500], [40, 1, 9]])
def test_rkv_scores_are_those_of_the_whole_matrix(counts: list[int]) -> None:
    """Also where a lane is compared in blocks, and where hardly a row is older than the window; keys form clusters."""
    random = np.random.default_rng(3)
    keys = random.standard_normal((len(counts), max(counts), HEAD_DIM))
    keys += 2 * random.standard_normal((10, HEAD_DIM))[random.integers(0, 10, size=keys.shape[:2])]
    weights = random.random((len(counts), 8, max(counts)))
    statistic = torch.from_numpy(weights.sum(axis=1)).float()
    view = ScoreView(
        torch.arange(max(counts)), torch.tensor(counts), statistic, KEEP, QUERIES, torch.from_numpy(keys).float(), None
    )
    found = load_policy("rkv").score(view)
    for lane, count in enumerate(counts):
        expected = rkv(Lane(keys[lane, :count], keys[lane, :count], weights[lane, :, :count]))[:count]
        torch.testing.assert_close(
            found[lane, :count], torch.tensor(expected, dtype=torch.float32), rtol=1e-4, atol=1e-7
        )


def test_a_weighed_row_is_worth_what_the_output_loses_with_it() -> None:
    """Row by row: drop it, let the other weights grow to sum up to 1, and see how far the output has moved."""
    random = torch.Generator().manual_seed(1)
    values = torch.randn(2, 9, HEAD_DIM, generator=random, dtype=torch.float64)
    weights = torch.rand(2, 9, generator=random, dtype=torch.float64)
    kept = [9, 6]
    view = ScoreView(torch.arange(9), torch.tensor(kept), weights.float(), 4, 9, None, values.float())
    found = load_policy("caote-tova").score(view)
    for lane, count in enumerate(kept):
        held, shares = values[lane, :count], weights[lane, :count] / weights[lane, :count].sum()
        for row in range(count):
            others = torch.arange(count) != row
            left = (shares[others] / shares[others].sum()) @ held[others]
            assert float(found[lane, row]) == pytest.approx(float((shares @ held - left).norm()), rel=1e-5)


@pytest.mark.parametrize("name", ["scissorhands", "keydiff"])
def test_values_weigh_nothing_but_attention(name: str) -> None:
    with pytest.raises(ValueError, match="does not look at"):
        ValueWeighted(load_policy(name))


@pytest.mark.parametrize(("name", "expected"), [("h2o", [0.6, 0.9]), ("kvc", [0.2, 0.45]), ("tova", [0.4, 0.6])])
def test_what_policies_make_of_weights(name: str, expected: list[float]) -> None:
    """Two queries give two rows the weights 0.2, 0.3 and 0.4, 0.6."""
    observation = load_policy(name).observation
    assert observation is not None
    weights, positions = torch.tensor([[0.2, 0.3], [0.4, 0.6]]), torch.arange(2)
    state = torch.zeros(2, observation.state_bytes, dtype=torch.uint8)
    state = observation.record(state, observation.measured(weights, torch.tensor([[2], [2]])), positions)
    torch.testing.assert_close(observation.statistic(state), torch.tensor(expected))
