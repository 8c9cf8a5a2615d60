"""How the rows that a sequence keeps are spread over its lanes, as measured on the model once and for all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_HALVINGS = 50


@dataclass(frozen=True, slots=True, eq=False)
class LaneProfile:
    """`rows` float32 [S, lanes]: the share of its rows that each lane keeps, where `shares` [S] are kept of all rows.

    `shares` ascend, and each is the mean of its `rows`.
    """

    shares: Tensor
    rows: Tensor

    def counts(self, keep_rows: int, kept: Tensor, seen: int, least: int) -> Tensor:
        """Rows that each lane keeps, int64 [lanes]; at most `keep_rows` in all, unless `least` for each are more.

        `kept` int64 [lanes] are the rows held now, after `seen` tokens. A lane keeps at least `least`, or all it has.
        """
        wanted = self.at(keep_rows / (seen * kept.numel())).double()
        low, high = 0.0, float(seen) / max(1e-9, float(wanted.min()))
        for _ in range(_HALVINGS):  # the factor at which what is wanted, within its bounds, is what there is
            middle = (low + high) / 2
            fits = int(self._bounded(wanted * middle, kept, least).sum()) <= keep_rows
            low, high = (middle, high) if fits else (low, middle)
        return self._bounded(wanted * low, kept, least)

    def at(self, share: float) -> Tensor:
        """The rows [lanes] at a share between those that were measured; beyond them, the outermost."""
        place = int(torch.searchsorted(self.shares, torch.tensor(share)).clamp(1, self.shares.numel() - 1))
        low, high = self.shares[place - 1], self.shares[place]
        return torch.lerp(self.rows[place - 1], self.rows[place], ((share - low) / (high - low)).clamp(0.0, 1.0))

    def changed(self, share: float, wanted: Tensor) -> LaneProfile:
        """This profile with other rows at the measured share that is nearest to `share`: in proportion to `wanted`.

        `wanted` float32 [lanes], above 0. No lane keeps more than all of its rows, so the others get what is over.
        """
        place = int((self.shares - share).abs().argmin())
        target, wanted = float(self.shares[place]), wanted.double()
        low, high = 0.0, 1.0 / max(1e-9, float(wanted.min()))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            fits = float((wanted * middle).clamp(max=1.0).mean()) <= target
            low, high = (middle, high) if fits else (low, middle)
        rows, shares = self.rows.clone(), self.shares.clone()
        rows[place] = (wanted * low).clamp(max=1.0)
        shares[place] = rows[place].mean()
        return LaneProfile(shares, rows)

    @staticmethod
    def _bounded(wanted: Tensor, kept: Tensor, least: int) -> Tensor:
        return torch.minimum(wanted.floor().long().clamp(min=least), kept)
