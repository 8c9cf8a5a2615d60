"""KeyDiff (Park et al., arXiv 2504.15364): keys unlike the others are the ones that are missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from paged_kv.policy import Policy, ScoreView


@dataclass(frozen=True, slots=True)
class KeyDiff(Policy):
    """Score: minus the cosine between the row's key and the mean direction of its lane's keys.

    Needs no attention weights, so it is the same whether a prompt is read in one chunk or in many.
    """

    reads_rows: ClassVar[bool] = True

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        assert view.keys is not None
        directions = functional.normalize(view.keys, dim=-1)
        mean = directions.sum(dim=1) / view.kept.unsqueeze(-1)
        return -functional.cosine_similarity(view.keys, mean.unsqueeze(1), dim=-1)


POLICY = KeyDiff()
