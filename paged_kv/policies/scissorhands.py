"""Scissorhands (Liu et al., NeurIPS 2023, arXiv 2305.17118): what did not matter lately will not matter later."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paged_kv.observation import Observation
from paged_kv.policy import Policy, ScoreView


@dataclass(frozen=True, slots=True)
class Scissorhands(Policy):
    """Score: minus the steps, of the last `window`, at which the row's weight fell below 1 / rows held (Algorithm 2).

    The paper writes 1 / t. Once rows are gone a row of weights sums to 1 over those held, so the uniform weight, which
    is what the threshold stands for, is 1 / rows held. With `counters` the window moves in spans, so that a row carries
    as many bytes instead of a bit per step; see `Observation`.
    """

    window: int = 400
    counters: int | None = 8

    @property
    def observation(self) -> Observation:
        """See `Policy.observation`."""
        return Observation("unimportant", window=self.window, counters=self.counters)

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        assert view.statistic is not None
        return -view.statistic


POLICY = Scissorhands()
