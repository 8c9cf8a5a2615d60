"""Which tokens may be drawn, as bits, and what that leaves of a row of logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Mask = npt.NDArray[np.bool_]


def as_mask(words: npt.NDArray[np.int32]) -> Mask:
    """Entry i of [32 * len(words)] is bit i % 32 of word i // 32."""
    return np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_)


def apply_mask(row: Tensor, mask: Mask) -> Tensor:
    """`row` float32 [vocab] with -inf wherever `mask` is false, or ends; neither is changed."""
    allowed = np.zeros(row.numel(), dtype=np.bool_)
    count = min(allowed.size, mask.size)
    allowed[:count] = mask[:count]
    if row.device.type == "cpu":  # without torch's threads, which would have to wait for each other once per row
        return torch.from_numpy(np.where(allowed, row.numpy(), np.float32("-inf")))
    return row.masked_fill(~torch.from_numpy(allowed).to(row.device), float("-inf"))
