"""The newest rows once more, in 8 bits. Errors of far rows cancel out; those of the newest, looked at most, do not."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from paged_kv.batch import PagedBatch
from paged_kv.formats import int8


class FreshRows:
    """Owned by the pool. A query meets the rows of its own block of positions, `p // rows`, here, and others in pages.

        keys, values          uint8 [slots, lanes, rows, width]   of each sequence's newest block, by position % rows
        new_keys, new_values  uint8 [*, kv_heads, width]          of the layer under way, for a step's tokens

    Token t of sequence s of a step is row (s + 1) * rows + t of the latter; before a sequence's first new token stand
    those of its block that were there already. A block begins anew at multiples of `rows`, so a sequence can start from
    pages alone there. Rows are in the pool's basis. No lane may lose a row of the newest block.
    """

    def __init__(self, num_slots: int, num_lanes: int, head_dim: int, rows: int) -> None:
        self.rows = rows
        self.width = int8.FORMAT.width(head_dim)
        self.keys, self.values = (_untouched(num_slots, num_lanes, rows, self.width) for _ in range(2))
        self.new_keys, self.new_values = (torch.empty(0, 0, self.width, dtype=torch.uint8) for _ in range(2))

    @staticmethod
    def bytes_per_sequence(num_lanes: int, head_dim: int, rows: int) -> int:
        """What a running sequence takes beside its pages."""
        return num_lanes * rows * int8.FORMAT.bytes_per_row(head_dim)

    def reserve(self, batch: PagedBatch) -> None:
        """Make room for the tokens of `batch`. Before the first layer of a step."""
        needed = batch.num_sequences * self.rows + batch.starts[-1]
        if self.new_keys.shape[0] < needed or self.new_keys.shape[1] != batch.kv_heads:
            shape = (2 * needed, batch.kv_heads, self.width)
            self.new_keys, self.new_values = (torch.empty(shape, dtype=torch.uint8) for _ in range(2))

    def enter(self, first_lane: int, keys: Tensor, values: Tensor, batch: PagedBatch) -> None:
        """Take over new rows of a layer, float [T, kv_heads, head_dim]: for this step, and what stays for the next."""
        self.reserve(batch)
        lanes = slice(first_lane, first_lane + batch.kv_heads)
        for new, held, vectors in ((self.new_keys, self.keys, keys), (self.new_values, self.values, values)):
            encoded = int8.FORMAT.encode(vectors)
            for s, (start, stop) in enumerate(zip(batch.starts, batch.starts[1:], strict=False)):
                slot, first = int(batch.slots[s]), int(batch.positions[start])
                last = first + stop - start - 1
                before = first % self.rows
                origin = (s + 1) * self.rows
                new[origin + start : origin + stop] = encoded[start:stop]
                new[origin + start - before : origin + start] = held[slot, lanes, :before].transpose(0, 1)
                count = min(last % self.rows, last - first) + 1
                stays = held[slot, lanes, last % self.rows + 1 - count : last % self.rows + 1]
                stays.copy_(encoded[stop - count : stop].transpose(0, 1))

    def of(self, sequence: int, batch: PagedBatch) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, n, head_dim] of a sequence's tokens in the step, behind those of its block."""
        start, stop = batch.starts[sequence], batch.starts[sequence + 1]
        before = int(batch.positions[start]) % self.rows
        origin = (sequence + 1) * self.rows
        part = slice(origin + start - before, origin + stop)
        keys, values = (int8.FORMAT.decode(new[part].transpose(0, 1)) for new in (self.new_keys, self.new_values))
        return keys, values

    def saved(self, slot: int) -> tuple[Tensor, Tensor]:
        """A copy of what `slot` holds."""
        return self.keys[slot].clone(), self.values[slot].clone()

    def restore(self, slot: int, saved: tuple[Tensor, Tensor]) -> None:
        """Let `slot` hold what was `saved`."""
        self.keys[slot], self.values[slot] = saved


def _untouched(*shape: int) -> Tensor:
    """Zeros in memory that the system maps only when it is written."""
    return torch.from_numpy(np.zeros(shape, dtype=np.uint8))
