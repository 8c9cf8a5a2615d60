"""Rows at random: the baseline that a policy has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paged_kv.policy import Policy, ScoreView


@dataclass(frozen=True, slots=True)
class Random(Policy):
    """Scores depend on the seed and the tokens seen only, so that a run can be repeated."""

    seed: int = 0

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + view.seen)
        return torch.rand(view.kept.numel(), view.rows.numel(), generator=generator).to(view.kept.device)


POLICY = Random()
