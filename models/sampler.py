"""From logits to tokens: one row at a time, so that a token never depends on who else is in the batch."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from models.argmax import best_tokens
from models.token_mask import Mask, apply_mask, as_mask
from scheduler.plan import SampleOrder, WorkResult
from scheduler.request import ConstraintError, SamplingParams, TokenLogprob

_GREEDY_BELOW = 1e-5  # colder than that, only logits that float32 can hardly tell apart would share the probability
_NEVER = float("-inf")
_NOTHING_LEFT = (
    "no token is left to choose: biases, bans and the required form of the output exclude each other, or the model "
    "gave no numbers"
)
_SHORTLIST = 256  # most nucleus draws are decided among so few candidates; only the rest sort the vocabulary


def sample(logits: Tensor, orders: Sequence[SampleOrder]) -> list[WorkResult]:
    """Draw one token per row of `logits` float32 [N, vocab], as `orders` [N] say.

    Reported logprobs are the model's own: before penalties, biases and temperature. A row for which no token is left,
    or whose constraint fails, gets an error instead of a token.
    """
    # Before anything waits for the logits: a device may still be computing them.
    masks = [_mask(order) for order in orders]
    plain = [mask is None and _is_plain(order) for mask, order in zip(masks, orders, strict=True)]
    best = best_tokens(logits) if any(plain) else [None] * len(orders)
    results = []
    for row, order, mask, is_plain, token in zip(logits, orders, masks, plain, best, strict=True):
        if isinstance(mask, ConstraintError):
            results.append(WorkResult(error=str(mask)))
        else:
            results.append(_result(row, order, token if is_plain else _draw_masked(row, order, mask)))
    return results


def _is_plain(order: SampleOrder) -> bool:
    """Whether the best logit decides as it is."""
    return order.params.temperature < _GREEDY_BELOW and not _adjusts(order)


def _mask(order: SampleOrder) -> Mask | ConstraintError | None:
    try:
        return None if order.constraint is None else as_mask(order.constraint.allowed(order.output))
    except ConstraintError as error:
        return error


def _draw_masked(row: Tensor, order: SampleOrder, mask: Mask | None) -> int | None:
    left = adjusted(row, order)
    if mask is not None:
        left = apply_mask(left, mask)
    if order.params.temperature < _GREEDY_BELOW:
        return best_tokens(left.unsqueeze(0))[0]
    return draw(left, order)


def _result(row: Tensor, order: SampleOrder, token: int | None) -> WorkResult:
    if token is None:
        return WorkResult(error=_NOTHING_LEFT)
    params = order.params
    if params.logprobs is None:
        return WorkResult(token)
    return WorkResult(token, logprobs_of(row.unsqueeze(0), [token], params.logprobs, params.logprob_token_ids)[0])


def adjusted(row: Tensor, order: SampleOrder) -> Tensor:
    """`row` [vocab] after penalties, biases and bans; the row itself is left as it is.

    Repetition divides positive and multiplies negative logits of every token seen (CTRL, arXiv 1909.05858, 4.1);
    frequency and presence penalties are OpenAI's and count generated tokens only.
    """
    params = order.params
    if not _adjusts(order):
        return row
    row = row.clone()
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*order.prompt, *order.output}), dtype=torch.int64, device=row.device)
        values = row[seen]
        row[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if order.output and (params.frequency_penalty or params.presence_penalty):
        tokens, counts = torch.tensor(order.output, device=row.device).unique(return_counts=True)
        row[tokens] -= params.frequency_penalty * counts + params.presence_penalty
    for token, bias in params.logit_bias:
        row[token] += bias
    row[[*order.banned, *_completing(params.bad_words, order.output)]] = _NEVER
    if params.allowed_token_ids:
        allowed = torch.tensor(params.allowed_token_ids, device=row.device)
        row = torch.full_like(row, _NEVER).index_copy_(0, allowed, row[allowed])
    return row


def _adjusts(order: SampleOrder) -> bool:
    params = order.params
    penalises = params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty
    narrows = params.logit_bias or params.bad_words or params.allowed_token_ids or order.banned
    return bool(penalises or narrows)


def _completing(bad_words: Iterable[tuple[int, ...]], output: tuple[int, ...]) -> list[int]:
    """The tokens that would complete one of `bad_words` after `output`."""
    return [last for *start, last in bad_words if not start or output[-len(start) :] == tuple(start)]


def draw(row: Tensor, order: SampleOrder) -> int | None:
    """A token from adjusted logits [vocab]: the best at temperature 0, else by the order's own random number.

    None if no token is left, because all are banned or the model gave no numbers.
    NaN counts as the lowest logit. Of equally good tokens the one with the lowest id is the best.
    """
    params = order.params
    row = row.nan_to_num(nan=_NEVER, posinf=torch.finfo(row.dtype).max, neginf=_NEVER)
    best = row.max(0)
    if best.values == _NEVER:
        return None
    if params.temperature < _GREEDY_BELOW:
        return int(row.argmax())
    tokens, weights = candidates((row - best.values) / params.temperature, params)
    cumulative = weights.double().cumsum(0)
    point = uniform(params.seed, order.choice, order.step) * cumulative[-1]
    place = int(torch.searchsorted(cumulative, point, right=True).clamp(max=cumulative.numel() - 1))
    return place if tokens is None else int(tokens[place])


def candidates(row: Tensor, params: SamplingParams) -> tuple[Tensor | None, Tensor]:
    """Tokens that may be drawn, best first (None: all, by id), and their weights, which need not sum to 1.

    Top-k is applied first, then top-p to what it left, then min-p, which is relative to the best token.
    """
    if params.top_k == 0 and params.top_p == 1.0:
        weights = row.softmax(0)
        return None, weights.masked_fill(weights < params.min_p * weights.max(), 0.0)
    values, tokens, total = _ranked(row, params)
    weights = (values - total).exp()
    kept = weights >= params.min_p * weights[0]
    if params.top_p < 1.0:
        kept &= weights.cumsum(0) - weights < params.top_p
    kept[0] = True
    return tokens[kept], weights[kept]


def _ranked(row: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, best first, with their ids, as many as top-k and top-p can need; and the logsumexp that norms them."""
    if params.top_k > 0:
        values, tokens = row.topk(min(params.top_k, row.numel()))
        return values, tokens, values.logsumexp(0)
    total = row.logsumexp(0)
    values, tokens = row.topk(min(_SHORTLIST, row.numel()))
    if (values - total).exp().sum() < params.top_p:
        values, tokens = row.sort(descending=True, stable=True)
    return values, tokens, total


def uniform(seed: int, choice: int, step: int) -> float:
    """A number in [0, 1) that these three fix for ever: no state, so preemption and batching cannot change it."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, choice, step), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2.0**53


def logprobs_of(logits: Tensor, tokens: Sequence[int], num_top: int, asked: Sequence[int] = ()) -> list[TokenLogprob]:
    """Log probability of `tokens` [N] under rows of `logits` [N, vocab], with the `num_top` best alternatives each.

    With `asked`, the alternatives are these ids, best first, whatever their number.
    """
    total = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1)) - total
    if asked:
        among = torch.tensor(asked, device=logits.device)
        values, places = logits[:, among].sort(dim=-1, descending=True)
        ids = among[places]
    else:
        values, ids = logits.topk(min(num_top, logits.shape[-1]), dim=-1)
    best = (values - total).tolist()
    return [
        TokenLogprob(token, logprob, tuple(zip(alternatives, values, strict=True)))
        for token, (logprob,), alternatives, values in zip(tokens, chosen.tolist(), ids.tolist(), best, strict=True)
    ]
