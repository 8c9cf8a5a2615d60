"""Knorm (Devoto et al., arXiv 2406.11430): short keys draw attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paged_kv.policy import Policy, ScoreView


@dataclass(frozen=True, slots=True)
class Knorm(Policy):
    """Score: minus the length of the row's key. Needs no attention weights."""

    reads_rows: ClassVar[bool] = True

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        assert view.keys is not None
        lengths: Tensor = view.keys.norm(dim=-1)
        return -lengths


POLICY = Knorm()
