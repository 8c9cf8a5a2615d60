"""What attention notes down about each row it reads, for policies that judge rows by the attention they get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

_FLOAT_BYTES = 4
_COUNTER_MAX = 255
_POPCOUNT = [value.bit_count() for value in range(256)]


@dataclass(frozen=True, slots=True)
class Observation:
    """How a row's statistic follows from the weights p that later queries give it (p: mean over the GQA group).

    With `window` None the statistic is a float32: statistic <- decay * statistic + f(p) at every query, where f is
    `measure`: "probability" p, "square" p * p, or "unimportant" 1[p < 1 / rows visible].
    With `window` w (not for "square", which float16 would round to nothing) it is the sum over the last w queries. The
    row's state has a place for each of them, which the query w later takes over: that at (position of the query mod w),
    a bit for "unimportant", a float16 for "probability", whose smallest step is 6e-8. With `counters` c the window
    moves in spans of w / c queries, so that it holds more than w - w / c and at most w of them: place (position / span
    mod c), a byte or a float16, sums up a span, and starts anew when the span's first query comes.
    """

    measure: Literal["probability", "square", "unimportant"]
    decay: float = 1.0
    window: int | None = None
    counters: int | None = None

    def __post_init__(self) -> None:
        counts = self.measure == "unimportant"
        if self.window is not None and (self.window < 1 or self.measure == "square"):
            raise ValueError(f"a window sums up probabilities or unimportant steps, and at least one, got {self}")
        if self.window is not None and counts and self.window % 8:
            raise ValueError(f"a window of unimportant steps is a multiple of 8, got {self}")
        if self.counters is not None and (self.counters < 1 or not self.window or self.window % self.counters):
            raise ValueError(f"counters divide a window, got {self}")
        if self.counters is not None and counts and self.span > _COUNTER_MAX:
            raise ValueError(f"counters divide a window into spans of at most {_COUNTER_MAX} queries, got {self}")

    @property
    def sums(self) -> int:
        """How many sums a row's state holds, each of a span of the window; 0 if it is made of bits, or not windowed."""
        is_exact = self.window is not None and self.measure == "probability"
        return self.counters or (self.window or 0 if is_exact else 0)

    @property
    def span(self) -> int:
        """Queries that one of the sums sums up; 0 without them."""
        return self.window // self.sums if self.window and self.sums else 0

    @property
    def state_bytes(self) -> int:
        """Bytes that every row carries for this."""
        if self.window is None:
            return _FLOAT_BYTES
        return self.sums * self._sum_dtype.itemsize or self.window // 8

    @property
    def _sum_dtype(self) -> torch.dtype:
        return torch.uint8 if self.measure == "unimportant" else torch.float16

    def measured(self, weights: Tensor, visible: Tensor) -> Tensor:
        """f(p) of `weights` [..., queries, rows]; `visible` [..., queries, 1] is how many rows each query saw."""
        if self.measure == "probability":
            return weights
        if self.measure == "square":
            return weights * weights
        seen = torch.arange(weights.shape[-1], device=weights.device) < visible
        return ((weights * visible < 1.0) & seen).to(weights.dtype)

    def record(self, state: Tensor, measured: Tensor, positions: Tensor) -> Tensor:
        """State after the queries at `positions` [..., queries], ascending by one, gave rows `measured` weights.

        `state` is uint8 [..., rows, state_bytes], `measured` float32 [..., queries, rows]; returns the new state.
        """
        if self.window is None:
            return self._accumulate(state, measured)
        if self.sums:
            return self._sum_spans(state, measured[..., -self.window :, :], positions[..., -self.window :])
        return self._set_bits(state, measured, positions, self.window)

    def note(self, state: Tensor, slots: Tensor, measured: Tensor, positions: Tensor) -> None:
        """`record` in place, for the rows at `slots` int64 [..., rows] of a pool's `state` uint8 [slots, state_bytes].

        A row may stand in `slots` more than once only if nobody reads its state.
        """
        if self.window is not None and not self.sums and positions.shape[-1] == 1:
            bit = positions % self.window  # [..., 1]
            mask = (1 << (bit % 8)).to(torch.uint8)
            places = slots * state.shape[-1] + bit // 8  # of the one byte that changes
            held = state.view(-1)[places]
            state.view(-1)[places] = torch.where(measured.squeeze(-2) > 0, held | mask, held & ~mask)
        else:
            state[slots] = self.record(state[slots], measured, positions)

    def statistic(self, state: Tensor) -> Tensor:
        """The statistic of each row as float32 [...], from its state uint8 [..., state_bytes]."""
        if self.window is None:
            return state.contiguous().view(torch.float32).squeeze(-1)
        if self.sums:
            return state.contiguous().view(self._sum_dtype).sum(dim=-1, dtype=torch.float32)
        popcount = torch.tensor(_POPCOUNT, dtype=torch.int32, device=state.device)
        return popcount[state.int()].sum(dim=-1).float()

    def _accumulate(self, state: Tensor, measured: Tensor) -> Tensor:
        queries = measured.shape[-2]
        before = self.statistic(state)
        powers = self.decay ** torch.arange(queries - 1, -1, -1, dtype=torch.float32, device=state.device)
        after = before * self.decay**queries + (powers[:, None] * measured).sum(dim=-2)
        return after.unsqueeze(-1).contiguous().view(torch.uint8)

    def _sum_spans(self, state: Tensor, measured: Tensor, positions: Tensor) -> Tensor:
        """`record` for the last queries, at most a window of them: the others would leave no trace."""
        spans = positions // self.span
        after = []
        for place, before in enumerate(state.contiguous().view(self._sum_dtype).unbind(-1)):
            latest = spans[..., -1:] - (spans[..., -1:] - place) % self.sums  # the last span that is summed up here
            more = measured.mul((spans == latest).unsqueeze(-1)).sum(dim=-2).to(self._sum_dtype)
            is_new = (positions == latest * self.span).any(dim=-1, keepdim=True)
            after.append(torch.where(is_new, more, before + more))
        return torch.stack(after, dim=-1).view(torch.uint8)

    @staticmethod
    def _set_bits(state: Tensor, measured: Tensor, positions: Tensor, window: int) -> Tensor:
        measured, positions = measured[..., -window:, :], positions[..., -window:]
        bits = torch.arange(window, device=state.device)
        query = (bits - positions[..., :1]) % window  # [..., window]: which query owns each bit, if it is there at all
        owned = query < positions.shape[-1]
        index = torch.where(owned, query, 0).unsqueeze(-1).expand(*query.shape, measured.shape[-1])
        flags = (measured.gather(-2, index) > 0) & owned.unsqueeze(-1)
        return (state & ~_packed(owned.unsqueeze(-1)).mT) | _packed(flags).mT


def _packed(bits: Tensor) -> Tensor:
    """Booleans [..., 8 * n, rows] to bytes [..., n, rows], the first of eight in the lowest bit."""
    powers = (1 << torch.arange(8, device=bits.device)).to(torch.uint8)
    eights = bits.reshape(*bits.shape[:-2], -1, 8, bits.shape[-1])
    return (eights * powers[:, None]).sum(dim=-2, dtype=torch.uint8)
