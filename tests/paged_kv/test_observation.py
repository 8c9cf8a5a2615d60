"""What attention notes down, against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paged_kv.observation import Observation


@given(
    chunks=st.lists(st.integers(1, 13), min_size=1, max_size=8),
    window=st.sampled_from([8, 16, 24]),
    seed=st.integers(0, 99),
)
def test_the_window_counts_exactly_its_last_queries(chunks: list[int], window: int, seed: int) -> None:
    """However queries are grouped into steps, a row's count is that of the last `window` flags."""
    random = np.random.default_rng(seed)
    rows, total = 5, sum(chunks)
    flags = random.integers(0, 2, size=(2, total, rows)).astype(np.float32)
    observation = Observation("unimportant", window=window)
    state = torch.zeros(2, rows, observation.state_bytes, dtype=torch.uint8)
    first = 0
    for count in chunks:
        positions = torch.arange(first, first + count).expand(2, -1)
        state = observation.record(state, torch.from_numpy(flags[:, first : first + count]), positions)
        first += count
    assert np.array_equal(observation.statistic(state).numpy(), flags[:, -window:].sum(axis=1))


@given(
    chunks=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    counters=st.sampled_from([1, 2, 4]),
    born=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_counters_count_whole_spans(chunks: list[int], counters: int, born: int, seed: int) -> None:
    """A row counts its flags since the first query of the oldest span that no later one has replaced."""
    random = np.random.default_rng(seed)
    window, rows, total = 16, 5, sum(chunks)
    flags = random.integers(0, 2, size=(2, total, rows)).astype(np.float32)
    observation = Observation("unimportant", window=window, counters=counters)
    assert observation.state_bytes == counters
    state = torch.zeros(2, rows, counters, dtype=torch.uint8)
    first = 0
    for count in chunks:
        positions = torch.arange(born + first, born + first + count).expand(2, -1)
        state = observation.record(state, torch.from_numpy(flags[:, first : first + count]), positions)
        first += count
    oldest = ((born + total - 1) // observation.span - counters + 1) * observation.span - born
    assert np.array_equal(observation.statistic(state).numpy(), flags[:, max(0, oldest) :].sum(axis=1))


@given(
    chunks=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    counters=st.sampled_from([None, 1, 2, 4, 12]),
    born=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_windows_of_weights_sum_up_whole_spans(chunks: list[int], counters: int | None, born: int, seed: int) -> None:
    """A row's weights since the first query of the oldest span that no later one has replaced; exact without spans."""
    random = np.random.default_rng(seed)
    window, rows, total = 12, 5, sum(chunks)
    weights = random.random(size=(2, total, rows)).astype(np.float32) / 100
    observation = Observation("probability", window=window, counters=counters)
    assert observation.state_bytes == 2 * (counters or window)
    state = torch.zeros(2, rows, observation.state_bytes, dtype=torch.uint8)
    first = 0
    for count in chunks:
        positions = torch.arange(born + first, born + first + count).expand(2, -1)
        state = observation.record(state, torch.from_numpy(weights[:, first : first + count]), positions)
        first += count
    span = window // (counters or window)
    oldest = ((born + total - 1) // span - window // span + 1) * span - born
    held = weights[:, max(0, oldest) :]
    assert window - span < total + born - (oldest + born) <= window
    found, expected = observation.statistic(state).numpy(), held.sum(axis=1)
    if span == 1:
        np.testing.assert_allclose(found, held.astype(np.float16).astype(np.float32).sum(axis=1), rtol=1e-6)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=12 * 2**-25)  # half a step of float16, 12 times


def test_sequences_at_different_positions_share_a_step() -> None:
    observation = Observation("unimportant", window=8)
    state = torch.zeros(2, 1, 1, dtype=torch.uint8)
    state = observation.record(state, torch.ones(2, 1, 1), torch.tensor([[3], [9]]))
    assert state.flatten().tolist() == [1 << 3, 1 << 1]


@pytest.mark.parametrize(
    "observation",
    [
        Observation("unimportant", window=24),
        Observation("unimportant", window=24, counters=3),
        Observation("probability", decay=0.5),
        Observation("probability", window=6),
        Observation("probability", window=24, counters=4),
    ],
)
@given(queries=st.integers(1, 30), seed=st.integers(0, 99))
def test_noting_in_place_is_recording(observation: Observation, queries: int, seed: int) -> None:
    """Rows of three sequences, two lanes each, scattered over a pool."""
    random = np.random.default_rng(seed)
    pool = torch.from_numpy(random.integers(0, 64, size=(50, observation.state_bytes), dtype=np.uint8))
    slots = torch.from_numpy(random.permutation(50)[:30].reshape(3, 2, 5))
    measured = torch.from_numpy(random.integers(0, 2, size=(3, 2, queries, 5)).astype(np.float32))
    positions = torch.from_numpy(random.integers(0, 99, size=(3, 1, 1)) + np.arange(queries)).expand(3, 2, queries)
    expected = pool.clone()
    expected[slots] = observation.record(pool[slots], measured, positions)
    observation.note(pool, slots, measured, positions)
    assert torch.equal(pool, expected)


def test_measures() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.125, 0.125]])
    visible = torch.tensor([[4]])
    assert Observation("probability").measured(weights, visible).tolist() == weights.tolist()
    assert Observation("square").measured(weights, visible).tolist() == [[0.25, 0.0625, 0.015625, 0.015625]]
    assert Observation("unimportant").measured(weights, visible).tolist() == [[0.0, 0.0, 1.0, 1.0]]
    assert Observation("unimportant").measured(weights, torch.tensor([[3]])).tolist() == [[0.0, 1.0, 1.0, 0.0]]


@given(decay=st.floats(0.0, 1.0), seed=st.integers(0, 99))
def test_decay_follows_its_recurrence(decay: float, seed: int) -> None:
    values = torch.from_numpy(np.random.default_rng(seed).random((6, 3), dtype=np.float32))
    observation = Observation("probability", decay=decay)
    expected = torch.zeros(3)
    for row in values:
        expected = decay * expected + row
    state = torch.zeros(3, observation.state_bytes, dtype=torch.uint8)
    for part in (values[:2], values[2:]):
        state = observation.record(state, part, torch.arange(part.shape[0]))
    torch.testing.assert_close(observation.statistic(state), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("measure", "window", "counters", "sentence"),
    [
        ("square", 8, None, "a window sums up"),
        ("probability", 0, None, "a window sums up"),
        ("unimportant", 0, None, "a window sums up"),
        ("unimportant", 12, None, "a multiple of 8"),
        ("unimportant", 400, 3, "counters divide a window"),
        ("unimportant", 400, 0, "counters divide a window"),
        ("unimportant", 400, 1, "spans of at most 255"),
        ("unimportant", None, 4, "counters divide a window"),
        ("probability", 16, 5, "counters divide a window"),
    ],
)
def test_impossible_windows_are_refused(measure: str, window: int | None, counters: int | None, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Observation(measure, window=window, counters=counters)  # type: ignore[arg-type]
