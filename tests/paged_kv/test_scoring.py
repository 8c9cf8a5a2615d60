"""Scores of rows when they are written: every backend notes what the definition says, and the rows keep it."""

from __future__ import annotations

import pytest
import torch

from csrc.library import available_variants
from paged_kv.attention.cpu import CpuBackend
from paged_kv.backend import AttentionBackend, load_backend
from paged_kv.observation import Observation
from paged_kv.plugins import names
from paged_kv.pool import KVPool
from paged_kv.rotary import Rotary
from paged_kv.scoring import LinearScorer
from tests.paged_kv.lanes import HEAD_DIM, World

FEATURES = (2 * 3 + 2 * 2) * HEAD_DIM


def scorer(num_scores: int, seed: int = 0) -> LinearScorer:
    random = torch.Generator().manual_seed(seed)
    weights = torch.randn(2, 2, num_scores, FEATURES, generator=random)
    return LinearScorer(weights, torch.randn(2, 2, num_scores, generator=random))


@pytest.mark.parametrize("backend", ["reference", *available_variants()])
@pytest.mark.parametrize("page_format", names("paged_kv.formats"))
@pytest.mark.parametrize("num_scores", [1, 2, 3])
def test_new_rows_carry_their_scores(backend: str, page_format: str, num_scores: int) -> None:
    world = World(group=3, page_format=page_format, scorer=scorer(num_scores))
    computes: AttentionBackend = load_backend("reference", HEAD_DIM) if backend == "reference" else CpuBackend(backend)
    assert world.pool.scorer is not None
    batch = world.append({0: 5, 1: 1})
    fused = torch.randn(6, FEATURES, generator=torch.Generator().manual_seed(7))
    rotary = Rotary.at(torch.arange(6), 100.0 ** -torch.linspace(0, 1, HEAD_DIM // 2))
    for layer in range(2):
        computes.append(world.pool, layer, fused, rotary, batch)
    found = world.pool.scorer.scores(world.pool.state.flatten(0, 1)[batch.new_slots])  # [T, lanes, scores]
    for token in range(6):
        for lane in range(4):
            weights, bias = world.pool.scorer.weights[lane // 2, lane % 2], world.pool.scorer.bias[lane // 2, lane % 2]
            expected = (weights.double() @ fused[token].double() + bias).float()
            torch.testing.assert_close(found[token, lane], expected, rtol=1e-3, atol=1e-3)


def test_scores_beyond_float16_become_its_largest() -> None:
    large = LinearScorer(torch.full((1, 1, 2, 4), 1e4), torch.tensor([[[0.0, -1e9]]]))
    state = large.state(0, torch.full((3, 4), 10.0))
    assert large.scores(state).tolist() == [[[65504.0, -65504.0]]] * 3


def test_a_row_has_one_state() -> None:
    world = World(scorer=scorer(2))
    with pytest.raises(AssertionError, match="one state"):
        KVPool(9, 4, HEAD_DIM, world.pool.format, Observation("probability"), world.pool.scorer)
