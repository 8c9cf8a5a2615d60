"""The oracle itself, on cases worked by hand.

The hand-worked cases have head_dim 1, so the softmax scale is 1. A row's key is the logarithm of its "mass" w, and a
query of +1 weighs the rows in proportion to w, one of -1 in proportion to 1/w, one of -3 to 1/w^3, one of 0 equally. A
row is then unimportant if its mass is below the mean mass. Values count from 1: row 0 holds 1, row 1 holds 2, ...
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.paged_kv.dense_scissorhands import DenseScissorhands


def feed(oracle: DenseScissorhands, masses: Sequence[float], queries: Sequence[float], start: int = 0) -> list[float]:
    """Step a one-head oracle of head_dim 1 through tokens and return the output of its first query head at each."""
    outputs = []
    for i, (mass, query) in enumerate(zip(masses, queries, strict=True)):
        q = np.full((oracle.group_size, 1), query, np.float32)
        k = np.full((1, 1), math.log(mass), np.float32)
        v = np.full((1, 1), start + i + 1, np.float32)
        outputs.append(float(oracle.step(q, k, v)[0, 0]))
    return outputs


def test_two_compressions_by_hand() -> None:
    oracle = DenseScissorhands(1, 1, 1, budget=4, recent=1, drop=2)
    # step  masses         mean   below it   counts so far
    #  0    4              4      -          0
    #  1    4 1            2.5    1          0 1
    #  2    4 1 3          2.67   1          0 2 0
    #  3    4 1 3 1        2.25   1, 3       0 3 0 1
    #  4    4 1 3 1 8      3.4    1, 2, 3    0 4 1 2 0   -> five rows: 1 and 3 go
    outputs = feed(oracle, [4, 1, 3, 1, 8], [1] * 5)
    assert oracle.kept_positions(0) == [0, 2, 4]
    assert outputs == pytest.approx(
        [1, (4 + 2) / 5, (4 + 2 + 9) / 8, (4 + 2 + 9 + 4) / 9, (4 + 2 + 9 + 4 + 40) / 17], rel=1e-6
    )
    assert oracle.min_margin == pytest.approx(1 / 5 - 3 / 17, rel=1e-5)

    # rows  0 2 4 5 6
    #  5    4 3 8 2        4.25   0, 2, 5    1 2 0 1
    #  6    4 3 8 2 2      3.8    2, 5, 6    1 3 0 2 1   -> 2 and 5 go
    outputs = feed(oracle, [2], [1], start=5)
    assert oracle.kept_positions(0) == [0, 2, 4, 5]
    assert outputs == pytest.approx([(4 + 9 + 40 + 12) / 17], rel=1e-6)
    assert oracle.min_margin == pytest.approx(1 / 4 - 4 / 17, rel=1e-5)

    outputs = feed(oracle, [2], [1], start=6)
    assert oracle.kept_positions(0) == [0, 4, 6]
    assert outputs == pytest.approx([(4 + 9 + 40 + 12 + 14) / 19], rel=1e-6)
    assert oracle.min_margin == pytest.approx(4 / 19 - 1 / 5, rel=1e-5)


def test_threshold_is_uniform_over_the_rows_held_not_over_the_tokens_seen() -> None:
    oracle = DenseScissorhands(1, 1, 1, budget=2, window=1, recent=1, drop=1)
    # Step 2: masses 6 1 5, mean 4: row 1 goes.
    feed(oracle, [6, 1, 5], [1] * 3)
    assert oracle.kept_positions(0) == [0, 2]
    # Step 3: masses 6 5 5.5, mean 5.5: row 2 is below and goes. Against a quarter of the sum, 4.125, none would be
    # below and row 0 would go as the oldest.
    feed(oracle, [5.5], [1], start=3)
    assert oracle.kept_positions(0) == [0, 3]


def test_compression_waits_until_the_count_exceeds_the_budget() -> None:
    oracle = DenseScissorhands(1, 1, 1, budget=4, recent=1)
    feed(oracle, [1] * 4, [1] * 4)
    assert oracle.kept_positions(0) == [0, 1, 2, 3]
    feed(oracle, [1], [1], start=4)
    assert len(oracle.kept_positions(0)) == 3  # half of the budget is dropped by default


def test_equal_counts_drop_the_oldest() -> None:
    oracle = DenseScissorhands(1, 1, 1, budget=4, recent=1, drop=2)
    # Only the last step tells rows apart: masses 9 1 1 1 9, mean 4.2, counts 0 1 1 1 0.
    feed(oracle, [9, 1, 1, 1, 9], [0, 0, 0, 0, 1])
    assert oracle.kept_positions(0) == [0, 3, 4]


def test_uniform_weights_are_a_tie_and_mark_nothing() -> None:
    oracle = DenseScissorhands(1, 3, 1, budget=60, recent=1, drop=1)
    # Sixty uniform steps mark no row, for any n, though three query heads are averaged. At the last step row 59 alone
    # is below the mean: it goes, which it would not if any older row had been marked even once.
    feed(oracle, [1] * 59 + [0.5], [0] * 60)
    assert oracle.min_margin == 0
    feed(oracle, [1], [1], start=60)
    assert oracle.kept_positions(0) == [*range(59), 60]


def test_a_lone_row_leaves_the_margin_open() -> None:
    oracle = DenseScissorhands(1, 1, 1, budget=4, recent=1)
    assert feed(oracle, [3], [1]) == [1]
    assert oracle.min_margin == math.inf


@pytest.mark.parametrize(("window", "dropped"), [(1, 1), (2, 1), (3, 1), (4, 0), (400, 0)])
def test_steps_slide_out_of_the_window(window: int, dropped: int) -> None:
    oracle = DenseScissorhands(1, 1, 1, budget=5, window=window, recent=1, drop=1)
    # Masses 1 4 4 4 4 4. Queries of +1 at steps 0-3: row 0 is below the mean at steps 1, 2 and 3, no other row ever is.
    # Queries of -1 at steps 4 and 5: rows 1-4 are below, row 0 is not. In the last w steps, row 0 is marked
    # w = 1: 0, 2: 0, 3: 1, 4: 2, all: 3 times and row 1 1, 2, 2, 2, 2 times. At w = 4 they tie and the older one goes.
    feed(oracle, [1, 4, 4, 4, 4, 4], [1, 1, 1, 1, -1, -1])
    assert oracle.kept_positions(0) == [i for i in range(6) if i != dropped]


@pytest.mark.parametrize(("recent", "kept"), [(0, [0, 1, 2]), (1, [1, 2, 4]), (2, [2, 3, 4]), (3, [2, 3, 4])])
def test_recent_rows_are_kept_whatever_their_record(recent: int, kept: list[int]) -> None:
    oracle = DenseScissorhands(1, 1, 1, budget=4, recent=recent, drop=2)
    # Masses 9 8 7 1 1, mean 5.2, told apart at the last step only: counts 0 0 0 1 1. Zeroing the last 0, 1, 2, 3 leaves
    # rows 3 and 4, row 3 and then the oldest, or the two oldest to go.
    feed(oracle, [9, 8, 7, 1, 1], [0, 0, 0, 0, 1])
    assert oracle.kept_positions(0) == kept


def test_grouped_query_heads_are_averaged_and_kv_heads_judge_alone() -> None:
    oracle = DenseScissorhands(2, 2, 1, budget=2, recent=1, drop=1)
    masses = [[1, 2, 2], [2, 1, 2]]
    values = [[1, 2, 3], [10, 20, 40]]
    queries = [[0, 0, 0, 0], [0, 0, 0, 0], [1, -3, -3, 1]]
    for i, query in enumerate(queries):
        k = np.log(np.array([[masses[0][i]], [masses[1][i]]], np.float32))
        v = np.array([[values[0][i]], [values[1][i]]], np.float32)
        output = oracle.step(np.array(query, np.float32)[:, None], k, v)
    # KV head 0: query +1 gives .2 .4 .4, query -3 gives .8 .1 .1, the mean is .5 .25 .25: row 1 is below a third.
    # (Row 0 is below for one of the two heads, and row 1 not below for both.)
    # KV head 1: query -3 gives .1 .8 .1, query +1 gives .4 .2 .4, the mean is .25 .5 .25: row 0 is below.
    assert oracle.kept_positions(0) == [0, 2]
    assert oracle.kept_positions(1) == [1, 2]
    assert output[:, 0] == pytest.approx([0.2 + 0.8 + 1.2, 0.8 + 0.2 + 0.3, 1 + 16 + 4, 4 + 4 + 16], rel=1e-6)
    assert oracle.min_margin == 0  # the uniform first steps


def test_a_budget_never_reached_is_plain_causal_attention() -> None:
    heads, group, dim, length = 2, 3, 8, 20
    rng = np.random.default_rng(0)
    q = rng.standard_normal((length, heads * group, dim), np.float32)
    k, v = rng.standard_normal((2, length, heads, dim), np.float32)
    oracle = DenseScissorhands(heads, group, dim, budget=length)
    outputs = np.stack([oracle.step(*token) for token in zip(q, k, v, strict=True)])

    repeated_k, repeated_v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    weights = np.exp(np.einsum("thd,shd->hts", q, repeated_k, dtype=np.float64) / math.sqrt(dim))
    weights *= np.tri(length)
    weights /= weights.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(outputs, np.einsum("hts,shd->thd", weights, repeated_v), rtol=1e-10, atol=1e-12)
    assert [oracle.kept_positions(head) for head in range(heads)] == [list(range(length))] * heads


@st.composite
def streams(draw: st.DrawFn) -> tuple[DenseScissorhands, DenseScissorhands, list[list[np.ndarray]]]:
    """Two oracles, one for all KV heads and one for the last alone, and a stream of (q, k, v) with many ties."""
    heads, group, dim = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    budget = draw(st.integers(1, 12))
    drop = draw(st.integers(1, budget + 1))
    limits = {
        "budget": budget,
        "drop": drop,
        "recent": draw(st.integers(0, budget + 1 - drop)),
        "window": draw(st.integers(1, 8)),
    }
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = [(heads * group, dim), (heads, dim), (heads, dim)]
    tokens = [[rng.integers(-2, 3, s).astype(np.float32) for s in shapes] for _ in range(draw(st.integers(1, 40)))]
    return DenseScissorhands(heads, group, dim, **limits), DenseScissorhands(1, group, dim, **limits), tokens


@settings(max_examples=60, deadline=None)
@given(streams())
def test_invariants(stream: tuple[DenseScissorhands, DenseScissorhands, list[list[np.ndarray]]]) -> None:
    oracle, last_head, tokens = stream
    heads = range(oracle.num_kv_heads)
    held: list[list[int]] = [[] for _ in heads]
    for t, (q, k, v) in enumerate(tokens):
        output = oracle.step(q, k, v)
        alone = last_head.step(q[-oracle.group_size :], k[-1:], v[-1:])
        for head in heads:
            before, after = [*held[head], t], oracle.kept_positions(head)
            assert len(after) == len(before) - (oracle.drop if len(before) > oracle.budget else 0)
            assert after == [position for position in before if position in after]
            assert set(after) >= set(before[len(before) - min(oracle.recent, len(before)) :])
            assert set(after) >= set(range(max(0, t + 1 - oracle.recent), t + 1))
            held[head] = after
        assert len({len(positions) for positions in held}) == 1
        assert held[-1] == last_head.kept_positions(0)
        np.testing.assert_array_equal(output[-oracle.group_size :], alone)
    assert oracle.min_margin <= last_head.min_margin


@pytest.mark.parametrize(
    "limits",
    [
        {"budget": 0},
        {"budget": 1},  # half of it is no row at all
        {"budget": 16},  # 10 recent rows and 8 dropped are more than 17
        {"budget": 64, "drop": 0},
        {"budget": 64, "window": 0},
        {"budget": 64, "recent": -1},
    ],
)
def test_impossible_limits_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"at least|cannot drop"):
        DenseScissorhands(1, 1, 1, **limits)


def test_tensors_that_do_not_fit_the_heads_are_refused() -> None:
    oracle = DenseScissorhands(2, 2, 4, budget=64)
    good_q, good_kv = np.zeros((4, 4), np.float32), np.zeros((2, 4), np.float32)
    for q, k, v in [(good_kv, good_kv, good_kv), (good_q, good_q, good_kv), (good_q, good_kv, good_kv[:1])]:
        with pytest.raises(ValueError, match="do not fit the heads"):
            oracle.step(q, k, v)
    assert oracle.kept_positions(0) == []
