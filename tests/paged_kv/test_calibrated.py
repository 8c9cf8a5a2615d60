"""The calibrated policy against its definition, and lanes that follow a profile."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paged_kv.eviction import EvictionDriver
from paged_kv.lanes import LaneProfile
from paged_kv.policies.calibrated import Calibrated
from paged_kv.policy import ScoreView, load_policy


@pytest.mark.parametrize("kept", [[40, 40, 40], [40, 25, 5]])
@pytest.mark.parametrize(("keep", "expected"), [(1, 0), (20, 0), (22, 3), (24, 6), (30, 9)])
def test_what_is_needed_goes_by_recall_and_the_rest_by_both_scores(kept: list[int], keep: int, expected: int) -> None:
    """By recall alone: at most half of what stays beside 20 protected rows, and a tenth of the tokens seen."""
    written = torch.randn(3, 40, 2, generator=torch.Generator().manual_seed(keep))
    view = ScoreView(torch.arange(40), torch.tensor(kept), None, keep, 30, written=written)
    policy = Calibrated(needed=0.1, recalled=0.5, flow=2.0)
    survives = EvictionDriver(policy, 0, 0, "global", kv_heads=1).choose(policy.score(view), view, 3 * keep)
    rows = [(lane, row) for lane, count in enumerate(kept) for row in range(count)]
    recall = {place: float(written[place][0]) for place in rows}
    both = {place: recall[place] + 2.0 * float(written[place][1]) for place in rows}
    first = sorted(rows, key=lambda place: -recall[place])[:expected]
    others = sorted(set(rows) - set(first), key=lambda place: -both[place])
    assert set(map(tuple, survives.nonzero().tolist())) == {*first, *others[: 3 * keep - len(first)]}


def test_without_a_calibration_there_is_no_scorer() -> None:
    policy = load_policy("calibrated")
    assert policy.scorer is None
    assert policy.state_bytes == 0


PROFILE = LaneProfile(torch.tensor([0.1, 0.5]), torch.tensor([[0.02, 0.08, 0.2], [0.1, 0.5, 0.9]]))


def test_the_profile_is_followed_where_it_was_measured_and_between() -> None:
    kept = torch.full((3,), 1000)
    for share, expected in ((0.1, [20, 80, 200]), (0.5, [100, 500, 900]), (0.3, [60, 290, 550])):
        counts = PROFILE.counts(round(3 * share * 1000), kept, 1000, 0)
        torch.testing.assert_close(counts, torch.tensor(expected), rtol=0, atol=2)


@given(
    kept=st.lists(st.integers(0, 400), min_size=3, max_size=3),
    keep=st.integers(1, 1200),
    least=st.integers(0, 40),
    later=st.integers(0, 300),
)
def test_lanes_keep_what_there_is_within_their_bounds(kept: list[int], keep: int, least: int, later: int) -> None:
    held = torch.tensor(kept)
    counts = PROFILE.counts(keep, held, max(1, *kept) + later, least)
    floor = torch.minimum(held, torch.tensor(least))
    assert (counts <= held).all()
    assert (counts >= floor).all()
    assert int(counts.sum()) <= max(keep, int(floor.sum()))
    # what is left over is what rounding down takes from each lane
    assert int(counts.sum()) >= min(keep, int(held.sum())) - 3


def test_lanes_of_a_driver_follow_the_profile() -> None:
    view = ScoreView(torch.arange(100), torch.full((3,), 100), None, 50, 100)
    driver = EvictionDriver(load_policy("streaming"), 1, 2, "profile", kv_heads=1, profile=PROFILE)
    survives = driver.choose(load_policy("streaming").score(view), view, 150)
    assert survives.sum(dim=1).tolist() == PROFILE.counts(150, view.kept, 100, 3).tolist()
    assert survives[:, -2:].all()
    assert survives[:, 0].all()


def test_a_driver_without_a_profile_cannot_follow_one() -> None:
    with pytest.raises(ValueError, match="profile"):
        EvictionDriver(load_policy("streaming"), 1, 2, "profile", kv_heads=1)
