"""The paged engine with `scissorhands-paper` against the dense Algorithm 1 and 2: the same rows, step for step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paged_kv.backend import load_backend
from paged_kv.eviction import EvictionDriver, Target
from paged_kv.plugins import names
from paged_kv.policies.scissorhands_paper import ScissorhandsPaper
from paged_kv.policy import load_policy
from scheduler.budget import EvictionRules, SequenceBudget
from tests.paged_kv.dense_scissorhands import DenseScissorhands
from tests.paged_kv.lanes import HEAD_DIM, World


@pytest.mark.parametrize("backend_name", names("paged_kv.attention"))
@pytest.mark.parametrize(
    ("kv_heads", "group", "budget", "window", "recent", "steps", "seed"),
    [(2, 1, 24, 16, 4, 400, 1), (3, 2, 40, 400, 10, 500, 2), (1, 3, 16, 8, 2, 300, 3), (4, 1, 33, 48, 10, 300, 4)],
)
def test_row_for_row(
    backend_name: str, kv_heads: int, group: int, budget: int, window: int, recent: int, steps: int, seed: int
) -> None:
    policy = ScissorhandsPaper(window=window)
    world = World(num_layers=1, kv_heads=kv_heads, group=group, num_pages=200, observation=policy.observation)
    backend = load_backend(backend_name, HEAD_DIM)
    driver = EvictionDriver(policy, policy.defaults.sinks, recent, policy.defaults.lanes, kv_heads)
    rules = EvictionRules(1, policy.defaults.drop, policy.defaults.ceiling, policy.defaults.streaming)
    limits = SequenceBudget(rules, budget)
    dense = DenseScissorhands(kv_heads, group, HEAD_DIM, budget=budget, window=window, recent=recent)
    random = np.random.default_rng(seed)
    positions = [list[int]() for _ in range(kv_heads)]
    for step in range(steps):
        q, k, v = (
            random.standard_normal((n, HEAD_DIM), dtype=np.float32) for n in (kv_heads * group, kv_heads, kv_heads)
        )
        if step % 7 == 0:
            k[:] = 0.0  # equal keys make equal weights, hence ties
        batch = world.append({0: 1}, observed=True)
        world.pool.write(batch.new_slots, torch.from_numpy(k)[None], torch.from_numpy(v)[None])
        for lane in range(kv_heads):
            positions[lane].append(step)
        got = backend.attend(world.pool, 0, torch.from_numpy(2 * q)[None], batch)
        np.testing.assert_allclose(got[0].numpy(), dense.step(2 * q, k, v), rtol=2e-5, atol=2e-5)
        if int(batch.kept.max()) > limits.high(step + 1):
            compress(world, driver, limits.low(step + 1) * kv_heads, positions)
        for lane in range(kv_heads):
            assert positions[lane] == dense.kept_positions(lane), f"step {step}, lane {lane}"
    assert dense.min_margin > 1e-8, "no step was decided by rounding alone"


def compress(world: World, driver: EvictionDriver, keep_rows: int, positions: list[list[int]]) -> None:
    """Compress slot 0 and drop from `positions` what is gone, found by comparing bytes."""
    before = world.pool.keys.flatten(0, 1)[world.mirror.slots_of_rows(0)]
    values = world.pool.values.flatten(0, 1)[world.mirror.slots_of_rows(0)]
    left = driver.compress(world.pool, world.mirror, Target(0, keep_rows, 0))
    world.tables[0].shrink(left.to(torch.int32).numpy(), world.allocator)
    world.check_integrity()
    slots = world.mirror.slots_of_rows(0)
    for lane, known in enumerate(positions):
        rows = zip(
            world.pool.keys.flatten(0, 1)[slots[lane]], world.pool.values.flatten(0, 1)[slots[lane]], strict=True
        )
        found = [
            next(
                i
                for i in range(len(known))
                if torch.equal(before[lane, i], key) and torch.equal(values[lane, i], value)
            )
            for key, value in rows
        ]
        positions[lane] = [known[i] for i in found]


def test_its_settings_are_the_papers() -> None:
    policy = load_policy("scissorhands-paper")
    assert isinstance(policy, ScissorhandsPaper)
    assert policy.window == 400
    settings = policy.defaults
    assert (settings.recent, settings.sinks, settings.lanes, settings.drop) == (10, 0, "uniform", 0.5)
    limits = SequenceBudget(EvictionRules(11, settings.drop, settings.ceiling, settings.streaming), 100)
    assert (limits.high(10_000), limits.low(10_000)) == (100, 51), "above B rows, m = B / 2 of B + 1 are dropped"
