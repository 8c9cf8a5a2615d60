"""PagedEviction's score (arXiv 2509.04377): a row matters if its value is long and its key is short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paged_kv.policy import Policy, ScoreView

_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class PagedEviction(Policy):
    """Score: length of the row's value over the length of its key. The paper drops whole pages; this, rows."""

    reads_rows: ClassVar[bool] = True

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        assert view.keys is not None
        assert view.values is not None
        ratio: Tensor = view.values.norm(dim=-1) / view.keys.norm(dim=-1).clamp(min=_TINY)
        return ratio


POLICY = PagedEviction()
