"""Ridge regression from running sums, so that what it is fitted to need not be held."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_TINY = 1e-30  # keeps features that never vary from making the equations singular


class RidgeSums:
    """Owns the sums of several regressions of one size: `add` samples to each, then `solve` them all.

    Features are taken as distances from the first samples' means, so that features far from zero lose no digits.
    """

    def __init__(self, problems: int, features: int, targets: int) -> None:
        self._origin = torch.zeros(problems, features)
        # Of the features with a one beside them: products with themselves, and with the targets.
        self._products = torch.zeros(problems, features + 1, features + 1)
        self._moments = torch.zeros(problems, features + 1, targets)

    def add(self, problem: int, x: Tensor, y: Tensor) -> None:
        """Samples of one problem: `x` float32 [n, features], `y` float32 [n, targets]."""
        if not self._products[problem, -1, -1]:
            self._origin[problem] = x.mean(dim=0)
        x = torch.cat((x - self._origin[problem], torch.ones(x.shape[0], 1)), dim=1)
        self._products[problem].addmm_(x.mT, x)
        self._moments[problem].addmm_(x.mT, y)

    def solve(self, penalty: float) -> tuple[Tensor, Tensor]:
        """Weights float32 [problems, features, targets] and constants float32 [problems, targets].

        `penalty` on the squared weights, as a share of the mean variance of a problem's features; constants go free.
        No numbers come out where none went in.
        """
        solved = [self._solve(problem, penalty) for problem in range(self._origin.shape[0])]
        weights, constants = zip(*solved, strict=True)
        return torch.stack(weights).float(), torch.stack(constants).float()

    def tensors(self) -> dict[str, Tensor]:
        """All there is to store."""
        return {"origin": self._origin, "products": self._products, "moments": self._moments}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave."""
        self._origin, self._products, self._moments = (tensors[name].clone() for name in self.tensors())

    def _solve(self, problem: int, penalty: float) -> tuple[Tensor, Tensor]:
        a, b = self._products[problem].double(), self._moments[problem].double()
        n, mean = a[-1, -1], a[-1, :-1] / a[-1, -1]
        spread = a[:-1, :-1] - n * torch.outer(mean, mean)
        spread.diagonal().add_(penalty * spread.diagonal().mean() + _TINY)
        weights = torch.linalg.solve_ex(spread, b[:-1] - torch.outer(mean, b[-1])).result
        constants = b[-1] / n - (mean + self._origin[problem].double()) @ weights
        return weights, constants
