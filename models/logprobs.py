"""What the model itself thought of tokens: before penalties, biases and temperature."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.drawing import Row, best_ids, log_total
from scheduler.request import TokenLogprob


def logprob_of(row: Row, token: int, num_top: int, asked: Sequence[int] = ()) -> TokenLogprob:
    """Log probability of `token` under logits `row` [vocab], with the `num_top` best alternatives.

    With `asked`, the alternatives are these ids, best first, whatever their number. Where `token` is among them, it has
    the very same number there: clients look for it by that.
    """
    total = log_total(row)
    if asked:
        among = np.array(asked, dtype=np.int64)
        ids = among[np.argsort(-row[among], kind="stable")]
    else:
        ids = best_ids(row, min(num_top, row.size))
    top = zip(ids.tolist(), (row[ids].astype(np.float64) - total).tolist(), strict=True)
    return TokenLogprob(token, float(row[token]) - total, tuple(top))
