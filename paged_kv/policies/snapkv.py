"""SnapKV (Li et al., arXiv 2404.14469): what the last few queries look at, and what stands beside it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paged_kv.observation import Observation
from paged_kv.policy import Policy, PolicyDefaults, ScoreView


@dataclass(frozen=True, slots=True)
class SnapKV(Policy):
    """Score: the weight that the last `window` queries gave the row, before rows get the highest score around them.

    Infinity for the newest `window` rows, as in the paper; all others got as many of these weights, so that the sum
    ranks them as the mean does. The paper looks at the end of a prompt; here the window moves on with every token. With
    `counters` it moves in spans, see `Observation`: 4 of them hold 13 to 16 queries in 8 bytes a row, where a place for
    each takes 32.
    """

    window: int = 16
    counters: int | None = 4

    @property
    def defaults(self) -> PolicyDefaults:
        """See `Policy.defaults`."""
        return PolicyDefaults(pool=15)

    @property
    def observation(self) -> Observation:
        """See `Policy.observation`."""
        return Observation("probability", window=self.window, counters=self.counters)

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        assert view.statistic is not None
        return view.statistic.masked_fill(view.age < self.window, float("inf"))


POLICY = SnapKV()
