"""The highest of many scores, and how many of them fit into pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_HALVINGS = 60


def ascending(values: Tensor) -> Tensor:
    """Each row of `values` [groups, n] sorted. On a CPU, numpy does it many times faster than torch."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=1))
    return values.sort(dim=1).values


def highest(values: Tensor, counts: Tensor) -> Tensor:
    """The `counts` [groups] highest of each row of `values` [groups, n], as bool; the first of equal ones win."""
    size = values.shape[1]
    wanted = counts.clamp(0, size).unsqueeze(-1)
    least = _lowest_chosen(values, wanted)
    above, level = values > least, values == least
    return above | (level & (level.cumsum(1) <= wanted - above.sum(1, keepdim=True)))


def _lowest_chosen(values: Tensor, wanted: Tensor) -> Tensor:
    """The lowest of the `wanted` [groups, 1] highest of each row of `values` [groups, n]; the highest if none is."""
    places = (values.shape[1] - wanted).clamp(max=values.shape[1] - 1)
    if values.shape[0] > 1:
        return ascending(values).gather(1, places)
    return values.kthvalue(int(places) + 1, keepdim=True).values


def rows_that_fit(worths: Sequence[Tensor], page_size: int, max_pages: int) -> list[Tensor]:
    """How many rows, the best of its own, each lane keeps where several sequences share `max_pages` pages.

    `worths[i]` float32 [lanes, R]: what each row of sequence i is worth, infinite for one that stays in any case and
    minus infinite where there is none. The rows that are worth least go first, whichever lane of whichever sequence
    holds them, until every lane could take one more row with `max_pages` pages for all. A lane then takes back what
    its pages have room for. Returns the rows left, int64 [lanes] each.
    """
    ranked = [ascending(-worth).double() for worth in worths]  # best first
    held = [(worth > float("-inf")).sum(1) for worth in worths]
    least, most = _range(worths)
    for _ in range(_HALVINGS):  # the lowest worth that rows may have to go
        middle = (least + most) / 2
        fits = sum(int((_above(rows, middle) // page_size + 1).sum()) for rows in ranked) <= max_pages
        least, most = (least, middle) if fits else (middle, most)
    pages = [_above(rows, most) // page_size + 1 for rows in ranked]
    return [torch.minimum(count * page_size - 1, rows) for count, rows in zip(pages, held, strict=True)]


def _range(worths: Sequence[Tensor]) -> tuple[float, float]:
    """Just below the lowest finite worth, and the highest."""
    finite = torch.cat([worth[worth.isfinite()] for worth in worths]).double()
    return (float(finite.min()) - 1.0, float(finite.max())) if finite.numel() else (0.0, 0.0)


def _above(ranked: Tensor, worth: float) -> Tensor:
    """How many rows of each lane are worth more than `worth`; `ranked` [lanes, R] has them negated, best first."""
    return torch.searchsorted(ranked, ranked.new_full((ranked.shape[0], 1), -worth)).squeeze(1)
