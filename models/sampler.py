"""From logits to tokens: one row at a time, so that a token never depends on who else is in the batch."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from scheduler.plan import SampleOrder
from scheduler.request import SamplingParams, TokenLogprob

_GREEDY_BELOW = 1e-5  # colder than that, only logits that float32 can hardly tell apart would share the probability
_SHORTLIST = 256  # most nucleus draws are decided among so few candidates; only the rest sort the vocabulary


def sample(logits: Tensor, orders: Sequence[SampleOrder]) -> list[tuple[int, TokenLogprob | None]]:
    """Draw one token per row of `logits` float32 [N, vocab], as `orders` [N] say.

    Reported logprobs are the model's own: before penalties, biases and temperature.
    """
    results: list[tuple[int, TokenLogprob | None]] = []
    for row, order in zip(logits, orders, strict=True):
        token = draw(adjusted(row, order), order)
        top = order.params.logprobs
        results.append((token, None if top is None else logprobs_of(row.unsqueeze(0), [token], top)[0]))
    return results


def adjusted(row: Tensor, order: SampleOrder) -> Tensor:
    """`row` [vocab] after penalties, biases and bans; the row itself is left as it is.

    Repetition divides positive and multiplies negative logits of every token seen (CTRL, arXiv 1909.05858, 4.1);
    frequency and presence penalties are OpenAI's and count generated tokens only.
    """
    params = order.params
    if not (order.prompt or order.output or order.banned or params.logit_bias):
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
    row[list(order.banned)] = float("-inf")
    return row


def draw(row: Tensor, order: SampleOrder) -> int:
    """A token from adjusted logits [vocab]: the best at temperature 0, else by the order's own random number.

    NaN counts as the lowest logit. Of equally good tokens the one with the lowest id is the best.
    """
    params = order.params
    row = row.nan_to_num(nan=float("-inf"), posinf=torch.finfo(row.dtype).max, neginf=float("-inf"))
    if params.temperature < _GREEDY_BELOW:
        return int(row.argmax())
    tokens, weights = candidates((row - row.max()) / params.temperature, params)
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


def logprobs_of(logits: Tensor, tokens: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """Log probability of `tokens` [N] under rows of `logits` [N, vocab], with the `num_top` best alternatives each."""
    total = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1)) - total
    top = logits.topk(min(num_top, logits.shape[-1]), dim=-1)
    best = (top.values - total).tolist()
    return [
        TokenLogprob(token, logprob, tuple(zip(ids, values, strict=True)))
        for token, (logprob,), ids, values in zip(tokens, chosen.tolist(), top.indices.tolist(), best, strict=True)
    ]
