"""Rows moved in C++ as in torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from csrc.library import move_rows
from paged_kv.moving import move, plain_move


def compaction(lanes: int, rows: int, kept: float, elsewhere: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Survivors drawn at random move to the front of their lane, or to a place of their own."""
    held = torch.randperm(2 * lanes * rows).view(2, lanes, rows)
    survives = torch.rand(lanes, rows) < kept
    counts = survives.sum(dim=1)
    front = torch.arange(rows) < counts.unsqueeze(-1)
    return held[0][survives], held[int(elsewhere)][front], counts


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.97, 1.0])
@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.float32, 64), (torch.uint8, 1), (torch.uint8, 68), (torch.uint8, 0)]
)
def test_as_torch_does(dtype: torch.dtype, width: int, kept: float, elsewhere: bool) -> None:
    torch.manual_seed(width)
    sources, targets, counts = compaction(7, 50, kept, elsewhere)
    plane = (100 * torch.rand(700, width)).to(dtype)
    expected = plane.clone()
    plain_move(expected, sources, targets, counts)
    for moves in (move, move_rows):
        moved = plane.clone()
        moves(moved, sources, targets, counts)
        assert torch.equal(moved, expected)


def test_the_order_within_a_lane_is_kept() -> None:
    """Rows that move by one place: each is read before the next takes its place."""
    plane = torch.arange(6.0).unsqueeze(-1)
    move(plane, torch.tensor([1, 2, 4, 5]), torch.tensor([0, 1, 3, 4]), torch.tensor([2, 2]))
    assert plane.flatten().tolist() == [1, 2, 2, 4, 5, 5]
