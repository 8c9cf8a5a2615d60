"""Every policy's score against its formula, restated row by row; and what they keep of a lane where that is plain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from paged_kv.eviction import EvictionDriver
from paged_kv.plugins import names
from paged_kv.policy import load_policy
from tests.paged_kv.lanes import HEAD_DIM, World

Rows = np.ndarray[Any, np.dtype[np.float64]]  # [rows, HEAD_DIM]


def length(vector: Rows) -> float:
    return float(np.sqrt((vector * vector).sum()))


def knorm(keys: Rows, _: Rows) -> list[float]:
    return [-length(key) for key in keys]


def keydiff(keys: Rows, _: Rows) -> list[float]:
    mean = sum(key / length(key) for key in keys) / len(keys)
    return [-float(key @ mean) / (length(key) * length(mean)) for key in keys]


def pagedeviction(keys: Rows, values: Rows) -> list[float]:
    return [length(value) / length(key) for key, value in zip(keys, values, strict=True)]


FORMULAS: dict[str, Callable[[Rows, Rows], list[float]]] = {
    "knorm": knorm,
    "keydiff": keydiff,
    "pagedeviction": pagedeviction,
}


def test_every_policy_that_reads_rows_has_its_formula_here() -> None:
    assert {name for name in names("paged_kv.policies") if load_policy(name).reads_rows} == set(FORMULAS)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("page_format", ["float32", "int4"])
def test_best_rows_by_the_formula_survive(name: str, page_format: str) -> None:
    """Lanes of different lengths, stale rows full of NaN behind them, and keys that may be stored rotated."""
    world = World(num_layers=1, kv_heads=3, page_format=page_format, num_pages=100)
    world.append({0: 30})
    world.truncate(0, [30, 19, 24])
    before = [list(lane) for lane in world.rows[0]]
    driver = EvictionDriver(load_policy(name), sinks=0, recent=0, lanes="uniform", kv_heads=3)
    left = driver.compress(world.pool, world.mirror, 0, keep_rows=3 * 10, seen=30)
    assert left.tolist() == [10, 10, 10]
    rotation = world.pool.rotation
    basis = torch.eye(HEAD_DIM) if rotation is None else rotation(torch.eye(HEAD_DIM))
    slots = world.mirror.slots_of_rows(0)
    for lane, rows in enumerate(before):
        keys, values = (torch.stack(part).double().numpy() for part in zip(*rows, strict=True))
        scores = FORMULAS[name](keys, values)
        best = sorted(np.argsort(scores)[-10:].tolist())
        survivors = world.pool.format.decode(world.pool.keys.flatten(0, 1)[slots[lane]]) @ basis.T
        torch.testing.assert_close(survivors, torch.from_numpy(keys[best]).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "expected"), [("h2o", [0.6, 0.9]), ("kvc", [0.2, 0.45]), ("tova", [0.4, 0.6])])
def test_what_policies_make_of_weights(name: str, expected: list[float]) -> None:
    """Two queries give two rows the weights 0.2, 0.3 and 0.4, 0.6."""
    observation = load_policy(name).observation
    assert observation is not None
    weights, positions = torch.tensor([[0.2, 0.3], [0.4, 0.6]]), torch.arange(2)
    state = torch.zeros(2, observation.state_bytes, dtype=torch.uint8)
    state = observation.record(state, observation.measured(weights, torch.tensor([[2], [2]])), positions)
    torch.testing.assert_close(observation.statistic(state), torch.tensor(expected))
