"""KV-Compress (Rehg, arXiv 2410.00161): squared attention, which tells few strong looks from many weak ones."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paged_kv.observation import Observation
from paged_kv.policy import Policy, ScoreView


@dataclass(frozen=True, slots=True)
class KVCompress(Policy):
    """Score: the sum of the squared weights that all later queries gave the row."""

    @property
    def observation(self) -> Observation:
        """See `Policy.observation`."""
        return Observation("square")

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        assert view.statistic is not None
        return view.statistic


POLICY = KVCompress()
