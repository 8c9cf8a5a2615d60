"""The best token of every row at once: what greedy sampling needs, and all it needs."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from csrc.library import Kernels, KernelsMissing


def best_tokens(logits: Tensor) -> list[int | None]:
    """The index of the largest of each row of float32 [N, vocab], the first of equals.

    NaN counts as the lowest; None for a row in which nothing is above minus infinity.
    """
    kernels = _kernels() if logits.device.type == "cpu" and logits.dtype == torch.float32 else None
    best = plain_argmax(logits) if kernels is None else kernels.argmax(logits)
    return [None if token < 0 else token for token in best.tolist()]


def plain_argmax(logits: Tensor) -> Tensor:
    """The same as int64 [N] in plain torch, -1 for a row without a best."""
    best = logits.masked_fill(logits.isnan(), float("-inf")).max(dim=-1)
    return torch.where(best.values == float("-inf"), -1, best.indices)


@cache
def _kernels() -> Kernels | None:
    try:
        return Kernels()
    except KernelsMissing:
        return None
