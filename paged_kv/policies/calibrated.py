"""Calibrated: a row's importance as a linear map predicts it when the row is written.

After KVzip (Kim et al., arXiv 2505.23416), which scores a row by the attention it gets while the model repeats its
context, and KVzap (arXiv 2601.07891), which predicts that score from hidden states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from paged_kv.calibration import Calibration
from paged_kv.policy import CalibratedPolicy, PolicyDefaults, ScoreView
from paged_kv.scoring import LinearScorer

_FIRST = 1e6  # above the logarithm of anything


@dataclass(frozen=True, slots=True)
class Calibrated(CalibratedPolicy):
    """First the rows with the highest score for being repeated, so that facts survive.

    They are the share `needed` of the tokens seen, for a text has so many facts whatever the budget is, but at most the
    share `recalled` of what stays beside the protected rows. The others go by that score plus `flow` times the score
    for being attended to by the text that follows, so that the text can go on. Lanes compete, because the scores are
    logarithms of weights and comparable between all.
    """

    comparable: ClassVar[bool] = True
    needed: float = 0.07
    recalled: float = 0.9
    flow: float = 6.0
    scorer: LinearScorer | None = None

    @property
    def defaults(self) -> PolicyDefaults:
        """See `Policy.defaults`."""
        return PolicyDefaults(recent=16, lanes="global")

    def calibrated(self, calibration: Calibration) -> Calibrated:
        """See `CalibratedPolicy.calibrated`."""
        return replace(self, scorer=calibration.scorer)

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        assert view.written is not None
        recall, flow = view.written.unbind(-1)
        held = recall[view.age >= 0]
        free = max(0, view.keep - self.defaults.sinks - self.defaults.recent)
        first = min(self.needed * view.seen, self.recalled * free) * view.kept.numel()
        first = min(int(first), held.numel())
        least = held.kthvalue(held.numel() + 1 - first).values if first else torch.inf
        return recall + self.flow * flow + torch.where(recall >= least, _FIRST, 0.0)


POLICY = Calibrated()
