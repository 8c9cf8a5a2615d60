"""What penalties, biases and bans make of a row of logits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from models.drawing import NEVER, Row
from models.token_mask import apply_mask
from scheduler.plan import SampleOrder


def adjusts(order: SampleOrder) -> bool:
    """Whether `adjusted` changes anything."""
    params = order.params
    penalises = params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty
    narrows = params.logit_bias or params.bad_words or params.allowed_token_ids or order.banned
    return bool(penalises or narrows)


def adjusted(row: Row, order: SampleOrder) -> Row:
    """`row` [vocab] after penalties, biases and bans; the row itself is left as it is.

    Repetition divides positive and multiplies negative logits of every token seen (CTRL, arXiv 1909.05858, 4.1);
    frequency and presence penalties are OpenAI's and count generated tokens only.
    """
    params = order.params
    if not adjusts(order):
        return row
    row = row.copy()
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.array([*order.prompt, *order.output], dtype=np.int64))
        values, penalty = row[seen], np.float32(params.repetition_penalty)
        row[seen] = np.where(values > 0, values / penalty, values * penalty)
    if order.output and (params.frequency_penalty or params.presence_penalty):
        tokens, counts = np.unique(np.array(order.output, dtype=np.int64), return_counts=True)
        row[tokens] -= (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)
    for token, bias in params.logit_bias:
        row[token] += np.float32(bias)
    row[[*order.banned, *_completing(params.bad_words, order.output)]] = NEVER
    if params.allowed_token_ids:
        allowed = np.array(params.allowed_token_ids, dtype=np.int64)
        only = np.full_like(row, NEVER)
        only[allowed] = row[allowed]
        return only
    return row


def permitted(order: SampleOrder, vocab_size: int, form: npt.NDArray[np.int32] | None) -> npt.NDArray[np.bool_]:
    """Which ids [vocab] `order` leaves to be drawn, whatever the model gives; `form`: those that its form allows."""
    left = adjusted(np.zeros(vocab_size, dtype=np.float32), order)
    return (left if form is None else apply_mask(left, form)) > NEVER


def _completing(bad_words: Iterable[tuple[int, ...]], output: tuple[int, ...]) -> list[int]:
    """The tokens that would complete one of `bad_words` after `output`."""
    return [last for *start, last in bad_words if not start or output[-len(start) :] == tuple(start)]
