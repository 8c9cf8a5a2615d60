"""Which tokens may be drawn, as bits, and what that leaves of a row of logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def as_mask(words: npt.NDArray[np.int32]) -> Tensor:
    """Bool [32 * len(words)]: entry i is bit i % 32 of word i // 32."""
    return torch.from_numpy(np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_))


def apply_mask(row: Tensor, mask: Tensor) -> Tensor:
    """`row` [vocab] with -inf wherever `mask` is false, or ends; neither is changed."""
    allowed = torch.zeros(row.numel(), dtype=torch.bool)
    count = min(row.numel(), mask.numel())
    allowed[:count] = mask[:count]
    return row.masked_fill(~allowed.to(row.device), float("-inf"))
