"""From logits to tokens: one row at a time, so that a token never depends on who else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from models.adjustments import adjusted, adjusts, permitted
from models.argmax import best_tokens
from models.drawing import GREEDY_BELOW, Row, draw
from models.logprobs import logprob_of
from models.token_mask import apply_mask
from scheduler.plan import SampleOrder, WorkResult
from scheduler.request import ConstraintError, Unsatisfiable

_NO_NUMBERS = "the model gave no numbers to choose a token by"
_ALL_EXCLUDED = (
    "no token is left to go on with: allowed_token_ids, bad_words, min_tokens and the form of the output exclude each "
    "other; ask for less"
)


def foresee(orders: Sequence[SampleOrder]) -> None:
    """Let constraints find out what may come, while the model computes the logits."""
    for order in orders:
        if order.constraint is not None:
            order.constraint.foresee(order.output)


def sample(logits: Tensor, orders: Sequence[SampleOrder]) -> list[WorkResult]:
    """Draw one token per row of `logits` float32 [N, vocab], as `orders` [N] say.

    Reported logprobs are the model's own: before penalties, biases and temperature. A row for which no token is left
    gets an error instead of a token: `Unsatisfiable` if what the order demands leaves none.
    """
    plain = [_is_plain(order) for order in orders]
    best = best_tokens(logits) if any(plain) else [None] * len(orders)
    rows = logits.cpu().numpy()
    results = []
    for row, order, is_plain, token in zip(rows, orders, plain, best, strict=True):
        try:
            results.append(_result(row, order, token if is_plain else _drawn(row, order)))
        except ConstraintError as error:
            results.append(WorkResult(error=Unsatisfiable(str(error))))
    return results


def _is_plain(order: SampleOrder) -> bool:
    """Whether the best logit decides as it is."""
    return order.params.temperature < GREEDY_BELOW and order.constraint is None and not adjusts(order)


def _drawn(row: Row, order: SampleOrder) -> int | None:
    """None if the model gave no numbers. Raises ConstraintError if nothing may be drawn."""
    form = None if order.constraint is None else order.constraint.allowed(order.output)
    left = adjusted(row, order)
    token = draw(left if form is None else apply_mask(left, form), order)
    if token is None and not permitted(order, row.size, form).any():
        raise ConstraintError(_ALL_EXCLUDED)
    return token


def _result(row: Row, order: SampleOrder, token: int | None) -> WorkResult:
    if token is None:
        return WorkResult(error=_NO_NUMBERS)
    params = order.params
    if params.logprobs is None:
        return WorkResult(token)
    return WorkResult(token, logprob_of(row, token, params.logprobs, params.logprob_token_ids))
