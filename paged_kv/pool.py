"""The memory itself: every row of every lane of every sequence, in pages of one size."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from paged_kv.basis import Basis, KeyStatistics
from paged_kv.format import PageFormat
from paged_kv.fresh import FreshRows
from paged_kv.moving import move
from paged_kv.observation import Observation
from paged_kv.scoring import LinearScorer


class KVPool:
    """Owns the tensors of the pool, allocated once. A row is addressed by its slot, `page * page_size + offset`.

        keys, values   [num_pages, page_size, width]        stored vectors, see `PageFormat`
        state          [num_pages, page_size, state_bytes]  uint8, what observation or scorer keeps about each row

    A pool has an `observation` or a `scorer`, or neither. Page 0 stays zero: padded tables point at it. Rows are stored
    in a `basis`, if the format asks for one. `fresh` holds the newest of them once more, or is None.
    The runner's thread alone touches the pool.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        head_dim: int,
        page_format: PageFormat,
        observation: Observation | None = None,
        scorer: LinearScorer | None = None,
        statistics: KeyStatistics | None = None,
        fresh: FreshRows | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        assert observation is None or scorer is None, "a row has one state"
        self.page_size = page_size
        self.head_dim = head_dim
        self.format = page_format
        self.observation = observation
        self.scorer = scorer
        self.fresh = fresh
        self.basis = Basis(head_dim, statistics) if page_format.turns_rows else None
        width = page_format.width(head_dim)
        self.keys = _zeros((num_pages, page_size, width), page_format.dtype, device)
        self.values = _zeros((num_pages, page_size, width), page_format.dtype, device)
        state_bytes = notes.state_bytes if (notes := observation or scorer) else 0
        self.state = _zeros((num_pages, page_size, state_bytes), torch.uint8, device)

    @property
    def block(self) -> int:
        """Tokens from a multiple of this on whose rows a query meets as they were when they were new."""
        return 1 if self.fresh is None else self.fresh.rows

    @staticmethod
    def bytes_per_page(page_size: int, head_dim: int, page_format: PageFormat, state_bytes: int) -> int:
        """What one page costs, everything included."""
        return page_size * (page_format.bytes_per_row(head_dim) + state_bytes)

    def write(self, slots: Tensor, keys: Tensor, values: Tensor, first_lane: int = 0) -> None:
        """Store new rows of neighbouring lanes, `slots` int64 [n, lanes]; their state starts at zero.

        `keys` and `values` float [n, lanes, head_dim].
        """
        keys, values = self.turned(keys, values, first_lane)
        encode = self.format.encode_uneven if self.basis is not None and self.basis.is_uneven else self.format.encode
        slots = slots.flatten()
        self.keys.flatten(0, 1).index_copy_(0, slots, encode(keys.flatten(0, 1)))
        self.values.flatten(0, 1).index_copy_(0, slots, self.format.encode(values.flatten(0, 1)))
        if self.observation is not None:
            self.state.flatten(0, 1).index_fill_(0, slots, 0)

    def turned(self, keys: Tensor, values: Tensor, first_lane: int) -> tuple[Tensor, Tensor]:
        """Keys and values [n, lanes, head_dim] of neighbouring lanes, in the basis that they are stored in."""
        if self.basis is None:
            return keys, values
        return self.basis.turn_keys(keys, first_lane), values.float() @ self.basis.values

    def move(self, sources: Tensor, targets: Tensor, counts: Tensor) -> None:
        """Copy rows byte for byte from slots `sources` to slots `targets`, int64 [n], lane after lane; see `move`."""
        for plane in (self.keys, self.values, self.state):
            move(plane.flatten(0, 1), sources, targets, counts)

    def poison(self, pages: Tensor) -> None:
        """Fill `pages` with values that no result survives, so that a read of a freed page cannot pass unseen."""
        for plane in (self.keys, self.values):
            if plane.is_floating_point():
                plane.index_fill_(0, pages, float("nan"))
            else:
                plane.index_fill_(0, pages, 255)  # scale and zero of all ones are NaN
        self.state.index_fill_(0, pages, 255)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Zeros; on a CPU from memory that the system maps only when it is written, so that a large pool starts at once."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    blank = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(blank).view(dtype).view(shape)
