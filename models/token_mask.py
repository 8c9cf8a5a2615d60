"""Which tokens may be drawn, as bits, and what that leaves of a row of logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from models.drawing import NEVER, Row


def apply_mask(row: Row, words: npt.NDArray[np.int32]) -> Row:
    """`row` [vocab] with -inf for each id whose bit is not set: bit i % 32 of word i // 32. Neither is changed."""
    allowed = np.unpackbits(words.view(np.uint8), count=row.size, bitorder="little")  # missing words forbid
    return np.where(allowed.view(np.bool_), row, np.float32(NEVER))
