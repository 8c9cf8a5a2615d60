"""CAOTE (Goel et al., arXiv 2504.14051): a row is worth what attention's output loses with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from paged_kv.observation import Observation
from paged_kv.policy import Policy, PolicyDefaults, ScoreView

_LEAST = torch.finfo(torch.float32).eps


@dataclass(frozen=True, slots=True)
class ValueWeighted(Policy):
    """`base`, which judges rows by the attention they got, given how far the output would move without them instead.

    With a the row's share of its lane's statistic, v its value and o the sum of a * v over the rows held, the statistic
    that `base` scores is a / (1 - a) * |o - v|: how far o moves if this row alone goes, and the shares of the others
    grow to sum up to 1 again. Raises ValueError if `base` does not look at attention.
    """

    base: Policy
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.base.observation is None or self.base.observation.measure == "unimportant":
            raise ValueError(f"values can weigh the attention that a row got, which {self.base} does not look at")

    @property
    def observation(self) -> Observation | None:
        """See `Policy.observation`."""
        return self.base.observation

    @property
    def defaults(self) -> PolicyDefaults:
        """See `Policy.defaults`."""
        return self.base.defaults

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        assert view.values is not None
        shares = view.shares
        output = torch.einsum("lr,lrd->ld", shares, view.values)
        distances = (view.values - output.unsqueeze(1)).norm(dim=-1)
        return self.base.score(replace(view, statistic=shares / (1 - shares).clamp(min=_LEAST) * distances))
