"""Which rows survive, and that they survive whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paged_kv.eviction import EvictionDriver, Target
from paged_kv.observation import Observation
from paged_kv.plugins import names
from paged_kv.policy import LaneMode, Policy, ScoreView, load_policy
from tests.paged_kv.lanes import HEAD_DIM, World


@dataclass(frozen=True)
class Given(Policy):
    """Scores that the test chose."""

    scores: Tensor

    def score(self, view: ScoreView) -> Tensor:
        return self.scores[:, : view.rows.numel()]


def filled(kept: list[int], **changes: int) -> World:
    world = World(num_layers=len(kept) // 2, kv_heads=2, **changes)
    world.append({0: max(kept), 1: 9})
    world.truncate(0, kept)
    return world


def compress(world: World, driver: EvictionDriver, keep_rows: int) -> list[list[int]]:
    """Compress slot 0; returns the old row numbers that each lane kept, after checking that their bytes moved whole."""
    before = world.rows[0]
    left = driver.compress(world.pool, world.mirror, Target(0, keep_rows, world.positions[0]))
    world.tables[0].shrink(left.to(torch.int32).numpy(), world.allocator)
    world.check_integrity()
    slots = world.mirror.slots_of_rows(0)
    kept = []
    for lane, count in enumerate(left.tolist()):
        keys = world.pool.keys.flatten(0, 1)[slots[lane, :count]]
        values = world.pool.values.flatten(0, 1)[slots[lane, :count]]
        numbers = [
            next(i for i, (k, v) in enumerate(before[lane]) if torch.equal(k, key) and torch.equal(v, value))
            for key, value in zip(keys, values, strict=True)
        ]
        assert numbers == sorted(set(numbers)), "rows keep their order, none is doubled"
        kept.append(numbers)
    world.rows[0] = [[before[lane][i] for i in numbers] for lane, numbers in enumerate(kept)]
    return kept


def test_lanes_keep_their_own_best_rows() -> None:
    world = filled([6, 6])
    scores = torch.tensor([[5.0, 1, 4, 2, 3, 0], [0.0, 1, 2, 3, 4, 5]])
    driver = EvictionDriver(Given(scores), sinks=0, recent=0, lanes="uniform", kv_heads=2)
    assert compress(world, driver, 6) == [[0, 2, 4], [3, 4, 5]]


def test_sinks_and_recent_rows_survive_the_worst_scores() -> None:
    world = filled([10, 10])
    scores = torch.arange(10.0).mul(-1).abs().repeat(2, 1)
    scores[:, :2] = -100
    scores[:, -3:] = -100
    driver = EvictionDriver(Given(scores), sinks=2, recent=3, lanes="uniform", kv_heads=2)
    assert compress(world, driver, 12) == [[0, 1, 6, 7, 8, 9]] * 2


@pytest.mark.parametrize(("block", "rows"), [(1, [0, 1]), (4, [0, 8, 9]), (16, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])])
def test_rows_of_a_block_that_is_not_full_survive_the_worst_scores(block: int, rows: list[int]) -> None:
    world = filled([10, 10])
    scores = torch.arange(10.0).mul(-1).repeat(2, 1)
    driver = EvictionDriver(Given(scores), sinks=0, recent=0, lanes="uniform", kv_heads=2, block=block)
    assert compress(world, driver, 2 * len(rows)) == [rows] * 2


def test_rows_that_a_policy_insists_on_stand_behind_the_protected_ones() -> None:
    world = filled([10, 10])
    scores = torch.arange(10.0).repeat(2, 1)
    scores[:, 4:9] = float("inf")
    driver = EvictionDriver(Given(scores), sinks=2, recent=1, lanes="uniform", kv_heads=2)
    assert compress(world, driver, 10) == [[0, 1, 7, 8, 9]] * 2


def test_equal_scores_keep_the_newer_rows() -> None:
    world = filled([8, 5])
    driver = EvictionDriver(Given(torch.zeros(2, 8)), sinks=0, recent=0, lanes="global", kv_heads=2)
    assert compress(world, driver, 6) == [[5, 6, 7], [2, 3, 4]]


@pytest.mark.parametrize(
    ("lanes", "expected"), [("uniform", [2, 2, 2, 2]), ("layer", [3, 1, 4, 0]), ("global", [3, 0, 5, 0])]
)
def test_who_competes(lanes: LaneMode, expected: list[int]) -> None:
    world = filled([5, 5, 5, 5])
    scores = torch.tensor([[8.0, 8, 8, 0, 0], [5.0, 4, 4, 4, 4], [9.0, 9, 9, 9, 9], [1.0, 1, 1, 1, 1]])
    driver = EvictionDriver(Given(scores), sinks=0, recent=0, lanes=lanes, kv_heads=2)
    assert [len(rows) for rows in compress(world, driver, 8)] == expected


@given(data=st.data())
@settings(max_examples=60)
def test_rows_get_the_highest_score_nearby(data: st.DataObject) -> None:
    """Against the definition, row by row: neither protected rows nor what lies behind a lane's end lends its score."""
    kept = data.draw(st.lists(st.integers(1, 20), min_size=2, max_size=2))
    sinks, recent, pool = (
        data.draw(st.integers(0, 3)),
        data.draw(st.integers(0, 4)),
        data.draw(st.sampled_from([3, 5, 9])),
    )
    scores = torch.rand(2, 20, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    for lane, count in enumerate(kept):
        scores[lane, count:] = 9.0
        scores[lane, [*range(min(sinks, count)), *range(max(0, count - recent), count)]] = 9.0
    keep = data.draw(st.integers(sinks + recent, 20))
    driver = EvictionDriver(Given(scores), sinks, recent, "uniform", kv_heads=2, pool=pool)
    found = compress(filled(kept), driver, 2 * keep)
    for lane, count in enumerate(kept):
        open_rows = range(sinks, max(sinks, count - recent))
        best = {
            row: max(float(scores[lane, near]) for near in open_rows if abs(near - row) <= pool // 2)
            for row in open_rows
        }
        protected = set(range(count)) - set(open_rows)
        others = sorted(best, key=lambda row: (best[row], row), reverse=True)[: max(0, keep - len(protected))]
        assert found[lane] == sorted([*protected, *others])


def test_a_row_kept_or_dropped_in_any_case_lends_nothing() -> None:
    world = filled([8, 8])
    scores = torch.tensor([[1.0, 2, 9, 4, float("inf"), 6, float("nan"), 0]]).repeat(2, 1)
    driver = EvictionDriver(Given(scores), sinks=0, recent=0, lanes="uniform", kv_heads=2, pool=3)
    assert compress(world, driver, 8) == [[1, 2, 3, 4]] * 2


@pytest.mark.parametrize("pool", [-1, 0, 2])
def test_a_pool_has_a_middle(pool: int) -> None:
    with pytest.raises(ValueError, match="odd number of rows"):
        EvictionDriver(load_policy("streaming"), 0, 0, "uniform", kv_heads=2, pool=pool)


def test_nan_counts_as_the_lowest_score() -> None:
    world = filled([6, 6])
    scores = torch.tensor([[float("nan"), 1, 2, 3, 4, float("nan")], [float("nan")] * 6])
    driver = EvictionDriver(Given(scores), sinks=0, recent=1, lanes="uniform", kv_heads=2)
    assert compress(world, driver, 6) == [[3, 4, 5], [3, 4, 5]]


def test_the_other_sequence_is_left_alone() -> None:
    world = filled([30, 30])
    before = [list(lane) for lane in world.rows[1]]
    driver = EvictionDriver(load_policy("streaming"), sinks=2, recent=2, lanes="uniform", kv_heads=2)
    compress(world, driver, 16)
    slots = world.mirror.slots_of_rows(1)
    for lane, rows in enumerate(before):
        stored = world.pool.keys.flatten(0, 1)[slots[lane, : len(rows)]]
        assert torch.equal(stored, torch.stack([key for key, _ in rows]))


@given(data=st.data())
@settings(max_examples=60)
def test_any_choice_keeps_order_counts_and_protected_rows(data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.integers(1, 24), min_size=4, max_size=4))
    sinks, recent = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 5))
    mode: LaneMode = data.draw(st.sampled_from(["uniform", "layer", "global"]))
    world = filled(kept, page_size=data.draw(st.sampled_from([1, 3, 4])))
    scores = torch.rand(4, 24, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99)))).mul(4).floor()
    scores[scores == 3] = float("inf")
    rows_each = data.draw(st.integers(sinks + recent, 24))
    driver = EvictionDriver(Given(scores), sinks, recent, mode, kv_heads=2)
    after = compress(world, driver, 4 * rows_each)
    for lane, rows in enumerate(after):
        must = {row for row in range(kept[lane]) if row < sinks or row >= kept[lane] - recent}
        assert must <= set(rows)
    if mode == "uniform":
        assert [len(rows) for rows in after] == [min(count, rows_each) for count in kept]
    if mode == "global":
        assert sum(map(len, after)) == min(sum(kept), 4 * rows_each)
    counts = {0: 1, 1: 2}
    batch = world.append(counts)
    queries = world.normal(3, world.kv_heads * world.group, HEAD_DIM)
    from paged_kv.backend import load_backend

    got = load_backend("reference", HEAD_DIM).attend(world.pool, 0, queries, batch)
    torch.testing.assert_close(got, world.naive_attention(0, queries, counts), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", names("paged_kv.policies"))
def test_every_policy_scores_every_row(name: str) -> None:
    policy = load_policy(name)
    statistic = torch.rand(3, 10) if policy.observation is not None else None
    rows = torch.randn(2, 3, 10, HEAD_DIM) if policy.reads_rows else (None, None)
    written = torch.randn(3, 10, 2)
    view = ScoreView(torch.arange(10), torch.tensor([10, 4, 1]), statistic, 5, 20, *rows, written)
    scores = policy.score(view)
    assert scores.shape == (3, 10)
    assert scores.dtype == torch.float32
    assert not scores[0].isnan().any()


def test_random_scores_repeat_for_a_seed_and_change_with_time() -> None:
    views = [ScoreView(torch.arange(9), torch.tensor([9, 9]), None, keep=5, seen=seen) for seen in (9, 9, 10)]
    first, again, later = (load_policy("random").score(view) for view in views)
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


@pytest.mark.parametrize("page_format", ["float32", "int4"])
@pytest.mark.parametrize("lanes", ["uniform", "global"])
def test_survivors_in_fresh_pages_are_those_in_place_and_the_old_rows_stay(page_format: str, lanes: LaneMode) -> None:
    """What others still read is not touched; page by page the copies hold the bytes that moving in place leaves."""
    left, states = [], []
    for copies in (False, True):
        world = World(page_format=page_format, observation=Observation("probability"), seed=3)
        world.append({0: 30})
        world.pool.state.copy_(torch.randint(0, 60, world.pool.state.shape, generator=torch.Generator().manual_seed(1)))
        before = world.pool.keys.clone()
        fresh = torch.from_numpy(world.allocator.allocate(40)).long() if copies else None
        driver = EvictionDriver(load_policy("h2o"), 2, 3, lanes, kv_heads=2)
        left.append(driver.compress(world.pool, world.mirror, Target(0, 4 * 11, 30), fresh))
        slots = world.mirror.slots_of_rows(0)
        held = torch.arange(slots.shape[1]) < left[-1].unsqueeze(-1)
        planes = (world.pool.keys, world.pool.values, world.pool.state)
        states.append([plane.flatten(0, 1)[slots[held]] for plane in planes])
        if fresh is not None:
            old = torch.from_numpy(world.tables[0].held()).long()
            torch.testing.assert_close(world.pool.keys[old], before[old], rtol=0, atol=0, equal_nan=True)
            table = world.tables[0]
            table.replace(left[-1].numpy().astype(np.int32), fresh.numpy().astype(np.int32), world.allocator)
            world.check_integrity()
    assert left[0].equal(left[1])
    assert all(one.equal(other) for one, other in zip(*states, strict=True))


@dataclass(frozen=True)
class Comparable(Given):
    """Scores of which a test says that they mean the same in both sequences."""

    comparable: ClassVar[bool] = True


class TestTogether:
    """Two sequences of 24 rows in four lanes compete; pages hold four rows, and one row of room is left."""

    targets = (Target(0, 16, 24), Target(1, 16, 24))

    def two(self) -> World:
        world = World()
        world.append({0: 24, 1: 24})
        return world

    def squeezed(self, driver: EvictionDriver, max_pages: int) -> tuple[World, list[list[int]]]:
        """The world after the contest, its rows checked byte for byte, and what each sequence has left."""
        world = self.two()
        before = [world.pool.keys.flatten(0, 1)[world.mirror.slots_of_rows(slot)] for slot in (0, 1)]
        lefts = driver.compress_together(world.pool, world.mirror, self.targets, max_pages)
        for slot, left in enumerate(lefts):
            assert torch.equal(world.mirror.kept(slot), left)
            world.tables[slot].shrink(left.to(torch.int32).numpy(), world.allocator)
            rows = world.pool.keys.flatten(0, 1)[world.mirror.slots_of_rows(slot)]
            for lane, count in enumerate(left.tolist()):
                places = [(before[slot][lane] == row).all(1).nonzero().item() for row in rows[lane, :count]]
                assert places == sorted(places), "survivors keep their order"
        world.check_integrity()
        return world, [left.tolist() for left in lefts]

    def scores(self) -> Tensor:
        return torch.arange(24.0).repeat(4, 1)

    @pytest.mark.parametrize("max_pages", [56, 47, 40, 23, 16])
    @pytest.mark.parametrize("lanes", ["uniform", "layer", "global"])
    @pytest.mark.parametrize("kind", [Given, Comparable])
    def test_pages_fall_free_and_every_budget_is_kept(self, kind: type[Given], lanes: LaneMode, max_pages: int) -> None:
        driver = EvictionDriver(kind(self.scores()), 1, 2, lanes, kv_heads=2)
        world, lefts = self.squeezed(driver, max_pages)
        assert sum(table.total_pages + table.pages_missing(1) for table in world.tables.values()) <= max_pages
        assert all(sum(left) >= 16 for left in lefts)

    def test_nothing_goes_while_there_is_room(self) -> None:
        driver = EvictionDriver(Comparable(self.scores()), 1, 2, "global", kv_heads=2)
        assert self.squeezed(driver, 2 * 4 * 7)[1] == [[24] * 4] * 2

    def test_at_the_end_each_keeps_what_it_keeps_alone(self) -> None:
        """Down to the budget, both lose what each would lose alone, but for what its pages have room for."""
        driver = EvictionDriver(Comparable(torch.rand(4, 24)), 1, 2, "global", kv_heads=2)
        world = self.two()
        view = ScoreView(torch.arange(24), torch.full((4,), 24), None, 4, 24)
        alone = driver.choose(driver.policy.score(view), view, 16)
        before = world.pool.keys.flatten(0, 1)[world.mirror.slots_of_rows(0)]
        lefts = driver.compress_together(world.pool, world.mirror, self.targets, 0)
        rows = world.pool.keys.flatten(0, 1)[world.mirror.slots_of_rows(0)]
        for lane in range(4):
            kept = {(before[lane] == row).all(1).nonzero().item() for row in rows[lane, : lefts[0][lane]]}
            assert set(alone[lane].nonzero().flatten().tolist()) <= kept
            assert len(kept) == (int(alone[lane].sum()) // 4 + 1) * 4 - 1

    def test_scores_that_mean_the_same_everywhere_decide_between_sequences(self) -> None:
        """Sequence 1 holds what is worth more, so sequence 0 loses rows down to its budget before 1 loses any."""

        @dataclass(frozen=True)
        class Newer(Policy):
            comparable: ClassVar[bool] = True

            def score(self, view: ScoreView) -> Tensor:
                return view.rows.float().repeat(4, 1) + 100 * view.seen

        driver = EvictionDriver(Newer(), 0, 1, "global", kv_heads=2)
        world = self.two()
        lefts = driver.compress_together(world.pool, world.mirror, (Target(0, 16, 1), Target(1, 16, 2)), 4 * 7 + 4 * 4)
        assert [left.tolist() for left in lefts] == [[15] * 4, [24] * 4]

    def test_other_scores_cost_all_sequences_the_same_share(self) -> None:
        driver = EvictionDriver(Given(self.scores()), 0, 1, "uniform", kv_heads=2)
        first, second = self.squeezed(driver, 2 * 4 * 4)[1]
        assert first == second == [15] * 4

    @pytest.mark.parametrize("kind", [Given, Comparable])
    def test_pinned_rows_stay_where_they_are(self, kind: type[Given]) -> None:
        world = self.two()
        driver = EvictionDriver(kind(self.scores()), 0, 1, "global", kv_heads=2)
        targets = (Target(0, 16, 24, pinned=8), Target(1, 16, 24))
        slots = world.mirror.slots_of_rows(0)[:, :8]
        before = world.pool.keys.flatten(0, 1)[slots]
        lefts = driver.compress_together(world.pool, world.mirror, targets, 4 * 4 + 4 * 2)
        assert [left.tolist() for left in lefts] == [[15] * 4, [7] * 4]
        assert torch.equal(world.mirror.slots_of_rows(0)[:, :8], slots)
        assert torch.equal(world.pool.keys.flatten(0, 1)[slots], before)
