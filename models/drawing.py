"""One token from one row of logits. In numpy: torch's threads would have to wait for each other at every operation."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import numpy.typing as npt

from scheduler.plan import SampleOrder
from scheduler.request import SamplingParams

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

GREEDY_BELOW = 1e-5  # colder than that, only logits that float32 can hardly tell apart would share the probability
NEVER = float("-inf")
_SHORTLIST = 256  # most nucleus draws are decided among so few candidates; only the rest sort the vocabulary
_BLOCK = 256  # weights that are added up at once, before one of them is looked for


def draw(row: Row, order: SampleOrder) -> int | None:
    """A token from adjusted logits [vocab]: the best at temperature 0, else by the order's own random number.

    None if no token is left, because all are banned or the model gave no numbers.
    NaN counts as the lowest logit. Of equally good tokens the one with the lowest id is the best.
    """
    params = order.params
    best = row.max()
    if not np.isfinite(best):
        row = np.nan_to_num(row, nan=NEVER, posinf=float(np.finfo(np.float32).max), neginf=NEVER)
        best = row.max()
    if best == NEVER:
        return None
    if params.temperature < GREEDY_BELOW:
        return int(row.argmax())
    with np.errstate(over="ignore"):
        scaled = (row - best) / np.float32(params.temperature)
    tokens, weights = candidates(scaled, params)
    place = _place(weights, uniform(params.seed, order.choice, order.step))
    return place if tokens is None else int(tokens[place])


def candidates(row: Row, params: SamplingParams) -> tuple[Ids | None, Row]:
    """Tokens that may be drawn, best first (None: all, by id), and their weights, which need not sum to 1.

    Top-k is applied first, then top-p to what it left, then min-p, which is relative to the best token.
    """
    if params.top_k == 0 and params.top_p == 1.0:
        weights = np.exp(row - row.max())
        if params.min_p > 0:
            weights[weights < params.min_p] = 0.0
        return None, weights
    tokens, total = _ranked(row, params)
    weights = np.exp(row[tokens] - np.float32(total))
    kept = weights >= params.min_p * weights[0]
    if params.top_p < 1.0:
        kept &= weights.cumsum() - weights < params.top_p
    kept[0] = True
    return tokens[kept], weights[kept]


def best_ids(row: Row, count: int) -> Ids:
    """The ids of the `count` best of `row`, best first, of equals the lowest first; fewer where the rest is -inf."""
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    threshold = NEVER if count >= row.size else np.partition(row, -count)[-count]
    ids = np.flatnonzero(row > threshold)
    if threshold > NEVER:
        ids = np.concatenate([ids, np.flatnonzero(row == threshold)[: count - ids.size]])
    ids.sort()
    ranked: Ids = ids[np.argsort(-row[ids], kind="stable")]
    return ranked


def log_total(row: Row) -> float:
    """The logarithm of the sum of the exponentials of `row`."""
    best = row.max()
    return float(best) + float(np.log(np.exp(row - best).sum(dtype=np.float64)))


def uniform(seed: int, choice: int, step: int) -> float:
    """A number in [0, 1) that these three fix for ever: no state, so preemption and batching cannot change it."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, choice, step), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2.0**53


def _ranked(row: Row, params: SamplingParams) -> tuple[Ids, float]:
    """Ids, best first, as many as top-k and top-p can need; and the logarithm of the sum that norms their weights."""
    if params.top_k > 0:
        tokens = best_ids(row, min(params.top_k, row.size))
        return tokens, log_total(row[tokens])
    total = log_total(row)
    tokens = best_ids(row, min(_SHORTLIST, row.size))
    if np.exp(row[tokens] - np.float32(total)).sum() < params.top_p:
        tokens = np.argsort(-row, kind="stable")
    return tokens, total


def _place(weights: Row, share: float) -> int:
    """Where the running sum of `weights` passes `share`, below 1, of the whole; never where a weight is 0."""
    sums = np.add.reduceat(weights, np.arange(0, weights.size, _BLOCK), dtype=np.float64)
    ends = sums.cumsum()
    point = share * ends[-1]
    block = min(int(ends.searchsorted(point, side="right")), int(sums.nonzero()[0][-1]))
    start = block * _BLOCK
    inside = weights[start : start + _BLOCK]
    rest = point - (ends[block - 1] if block else 0.0)
    place = int(inside.cumsum(dtype=np.float64).searchsorted(rest, side="right"))
    return start + min(place, int(inside.nonzero()[0][-1]))
