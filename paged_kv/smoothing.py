"""Scores lent between neighbours: what stands beside an important token is often needed to make sense of it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def highest_nearby(scores: Tensor, width: int) -> Tensor:
    """Every row's highest score among the `width` rows around it: `scores` float32 [lanes, R], `width` odd.

    Infinite scores, of rows that stay or go in any case, are neither lent nor changed: what such a row is worth says
    nothing of those beside it.
    """
    if width == 1:
        return scores
    is_open = scores.isfinite()
    lent = scores.masked_fill(~is_open, float("-inf"))
    return torch.where(is_open, functional.max_pool1d(lent, width, stride=1, padding=width // 2), scores)
