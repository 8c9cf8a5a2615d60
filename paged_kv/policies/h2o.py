"""H2O (Zhang et al., arXiv 2306.14048): heavy hitters by accumulated attention, and half the budget for recent rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paged_kv.observation import Observation
from paged_kv.policy import Policy, ScoreView


@dataclass(frozen=True, slots=True)
class H2O(Policy):
    """Score: the sum of the weights that all later queries gave the row. `recent_share` of what stays is the newest."""

    recent_share: float = 0.5

    @property
    def observation(self) -> Observation:
        """See `Policy.observation`."""
        return Observation("probability")

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        assert view.statistic is not None
        return view.statistic.masked_fill(view.age < int(self.recent_share * view.keep), float("inf"))


POLICY = H2O()
