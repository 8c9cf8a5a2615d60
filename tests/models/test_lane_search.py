"""That evolution finds the profile that is known to be best."""

from __future__ import annotations

import pytest
import torch

from models.lane_search import LaneSearch
from paged_kv.lanes import LaneProfile

LAYERS, KV_HEADS = 8, 3
LANES = LAYERS * KV_HEADS
SHARE = 0.2


def profile_of(steepness: float, slope: float) -> LaneProfile:
    """Lanes whose shares fall with their rank, by `steepness`, and grow with the depth of their layer, by `slope`."""
    order = torch.randperm(LANES, generator=torch.Generator().manual_seed(1))
    wanted = (-steepness * order / LANES).exp() * (slope * (torch.arange(LANES) // KV_HEADS) / LAYERS).exp()
    shares = torch.tensor([0.1, SHARE, 0.5])
    rows = torch.stack([torch.full((LANES,), share) for share in shares.tolist()])
    return LaneProfile(shares, rows).changed(SHARE, wanted)


def distance(one: LaneProfile, other: LaneProfile) -> float:
    """How far the rows at SHARE lie apart, as a mean over lanes."""
    return float((one.at(SHARE).log() - other.at(SHARE).log()).square().mean())


@pytest.mark.parametrize(("steepness", "slope"), [(4.0, 0.0), (0.5, 1.0), (2.0, -1.5)])
def test_the_known_best_profile_is_found(steepness: float, slope: float) -> None:
    start, best = profile_of(2.0, 0.0), profile_of(steepness, slope)
    search = LaneSearch(start, SHARE, KV_HEADS)
    assert distance(search.profile, start) == pytest.approx(0.0, abs=1e-6)
    means = [search.generation(lambda profile: distance(profile, best)) for _ in range(60)]
    assert distance(search.profile, best) < 0.03 * distance(start, best)
    assert means[-1] < means[0]


def test_the_same_search_comes_to_the_same() -> None:
    ends = []
    for _ in range(2):
        search = LaneSearch(profile_of(2.0, 0.0), SHARE, KV_HEADS)
        for _ in range(5):
            search.generation(lambda profile: distance(profile, profile_of(3.0, 0.5)))
        ends.append(search.profile.rows)
    assert torch.equal(*ends)


def test_a_model_of_one_lane_has_nothing_to_search_and_survives_it() -> None:
    search = LaneSearch(LaneProfile(torch.tensor([0.1, 0.2]), torch.tensor([[0.1], [0.2]])), SHARE, 1)
    search.generation(lambda profile: float(profile.rows.sum()))
    torch.testing.assert_close(search.profile.rows, torch.tensor([[0.1], [0.2]]))


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_changed_rows_keep_their_share_and_no_lane_more_than_all(factor: float) -> None:
    start = LaneProfile(torch.tensor([0.1, 0.4]), torch.tensor([[0.1] * 4, [0.4] * 4]))
    changed = start.changed(0.3, factor * torch.tensor([1.0, 2.0, 4.0, 100.0]))
    assert torch.equal(changed.rows[0], start.rows[0])
    torch.testing.assert_close(changed.rows[1], torch.tensor([0.6 / 7, 1.2 / 7, 2.4 / 7, 1.0]))
    torch.testing.assert_close(changed.shares, start.shares)
    assert torch.equal(start.rows[1], torch.full((4,), 0.4))
