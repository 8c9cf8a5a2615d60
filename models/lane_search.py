"""Evolves a lane profile towards what a task needs, after EvolKV (Yu and Chai, arXiv 2509.08315)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from cmaes import CMA
from torch import Tensor

from paged_kv.lanes import LaneProfile

_KNOTS = 6  # of each of the two curves
_SIGMA = 0.5  # of a knot's first changes: the logarithm of a factor


class LaneSearch:
    """Owns the evolution (CMA-ES) of one profile's rows at `share`; `generation` after `generation` it gets better.

    What changes is the logarithm of each lane's share, by the sum of two curves with a few knots each: one over the
    depth of the lane's layer, one over the rank of its share among all. So a few hundred losses tell something, which
    they could not about each lane by itself. `kv_heads`: lanes of a layer.
    """

    def __init__(self, profile: LaneProfile, share: float, kv_heads: int, seed: int = 0) -> None:
        rows = profile.at(share)
        depth = torch.arange(rows.numel()) // kv_heads
        self._start = profile
        self._share = share
        self._rows = rows
        self._curves = torch.cat((_curves(depth), _curves(rows.argsort(stable=True).argsort())))
        self._evolution = CMA(mean=np.zeros(2 * _KNOTS), sigma=_SIGMA, seed=seed)

    @property
    def profile(self) -> LaneProfile:
        """The middle of those that the next generation would try."""
        return self._profile(self._evolution.mean)

    @property
    def size(self) -> int:
        """Profiles that a generation tries."""
        return int(self._evolution.population_size)

    def generation(self, loss: Callable[[LaneProfile], float]) -> float:
        """Try some profiles, and move towards those of the lowest `loss`; returns the mean of what they had."""
        tried = [self._evolution.ask() for _ in range(self.size)]
        losses = [loss(self._profile(each)) for each in tried]
        self._evolution.tell(list(zip(tried, losses, strict=True)))
        return sum(losses) / len(losses)

    def _profile(self, knots: np.ndarray) -> LaneProfile:
        changes = torch.from_numpy(knots).float() @ self._curves
        return self._start.changed(self._share, self._rows * changes.exp())


def _curves(places: Tensor) -> Tensor:
    """How much each knot of a curve counts for each of `places` int64 [lanes], float32 [knots, lanes]."""
    scaled = places * ((_KNOTS - 1) / max(1, int(places.max())))
    return (1 - (scaled - torch.arange(_KNOTS).unsqueeze(-1)).abs()).clamp(min=0.0)
