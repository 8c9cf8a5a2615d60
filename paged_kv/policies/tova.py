"""TOVA (Oren et al., arXiv 2401.06104): what the newest token looks at."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paged_kv.observation import Observation
from paged_kv.policy import Policy, ScoreView


@dataclass(frozen=True, slots=True)
class Tova(Policy):
    """Score: the weight that the last query gave the row. The paper has one set of rows a layer; this, a lane."""

    @property
    def observation(self) -> Observation:
        """See `Policy.observation`."""
        return Observation("probability", decay=0.0)

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        assert view.statistic is not None
        return view.statistic


POLICY = Tova()
