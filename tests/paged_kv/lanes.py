"""A small paged world to test kernels in: tables, mirror and pool kept in step, and a naive oracle beside them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from paged_kv.allocator import PageAllocator
from paged_kv.basis import KeyStatistics
from paged_kv.batch import PagedBatch, TableMirror
from paged_kv.format import load_format
from paged_kv.observation import Observation
from paged_kv.pool import KVPool
from paged_kv.scoring import LinearScorer
from paged_kv.table import PageTable

HEAD_DIM = 32


def made_up_statistics(lanes: int, head_dim: int) -> KeyStatistics:
    """Of keys with means of their own, and with numbers that matter more than others."""
    random = torch.Generator().manual_seed(lanes)
    means = 2 * torch.randn(lanes, head_dim, generator=random)
    return KeyStatistics(means, *(4 * torch.rand(2, lanes, head_dim, generator=random)))


class World:
    """Sequences of `num_layers` layers with `kv_heads` KV heads over one pool; freed pages are poisoned."""

    def __init__(
        self,
        *,
        num_layers: int = 2,
        kv_heads: int = 2,
        group: int = 3,
        page_size: int = 4,
        num_pages: int = 400,
        head_dim: int = HEAD_DIM,
        page_format: str = "float32",
        observation: Observation | None = None,
        scorer: LinearScorer | None = None,
        is_measured: bool = False,
        seed: int = 0,
    ) -> None:
        self.num_layers, self.kv_heads, self.group, self.head_dim = num_layers, kv_heads, group, head_dim
        statistics = made_up_statistics(num_layers * kv_heads, head_dim) if is_measured else None
        self.pool = KVPool(num_pages, page_size, head_dim, load_format(page_format), observation, scorer, statistics)
        self.allocator = PageAllocator(num_pages)
        self.mirror = TableMirror(8, num_layers, kv_heads, page_size)
        self.tables: dict[int, PageTable] = {}
        self.rows: dict[int, list[list[tuple[Tensor, Tensor]]]] = {}  # slot -> lane -> (k, v) as written, in order
        self.positions: dict[int, int] = {}
        self.random = torch.Generator().manual_seed(seed)
        self.pool.poison(torch.arange(1, num_pages))

    @property
    def num_lanes(self) -> int:
        return self.num_layers * self.kv_heads

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random)

    def append(self, counts: dict[int, int], observed: bool = False) -> PagedBatch:
        """Give each slot of `counts` that many new tokens with random rows; returns the batch to attend with."""
        for slot, count in counts.items():
            table = self.tables.setdefault(slot, PageTable(self.num_lanes, self.pool.page_size))
            self.rows.setdefault(slot, [[] for _ in range(self.num_lanes)])
            self.mirror.extend(slot, table.extend(count, self.allocator), count)
        positions = [self.positions.get(slot, 0) for slot in counts]
        batch = self.mirror.batch(list(counts), list(counts.values()), positions, (observed,) * len(counts))
        tokens = sum(counts.values())
        for lane in range(self.num_lanes):
            keys, values = self.normal(tokens, self.head_dim), self.normal(tokens, self.head_dim)
            self.pool.write(batch.new_slots[:, lane : lane + 1], keys.unsqueeze(1), values.unsqueeze(1), lane)
            keys, values = self._as_stored(keys, values, lane)
            rows = iter(zip(keys, values, strict=True))
            for slot, count in counts.items():
                self.rows[slot][lane].extend(next(rows) for _ in range(count))
        for slot, count in counts.items():
            self.positions[slot] = self.positions.get(slot, 0) + count
        return batch

    def _as_stored(self, keys: Tensor, values: Tensor, lane: int) -> tuple[Tensor, Tensor]:
        """Keys and values [n, head_dim] of a lane after the loss of precision that the pool's format means."""
        page_format, basis = self.pool.format, self.pool.basis
        if basis is None:
            return page_format.decode(page_format.encode(keys)), page_format.decode(page_format.encode(values))
        turned = basis.turn_keys(keys.unsqueeze(1), lane)[:, 0]
        back = torch.linalg.inv(basis.keys[lane if basis.is_uneven else 0])
        encode = page_format.encode_uneven if basis.is_uneven else page_format.encode
        keys = page_format.decode(encode(turned)) @ back
        return keys, page_format.decode(page_format.encode(values @ basis.values)) @ basis.outputs

    def truncate(self, slot: int, kept: list[int]) -> None:
        """Drop rows behind `kept` per lane, as if evicted from the end; their pages are poisoned."""
        counts = np.array(kept, dtype=np.int32)
        freed = self.tables[slot].shrink(counts, self.allocator)
        self.pool.poison(torch.from_numpy(freed).long())
        self.mirror.truncate(slot, torch.tensor(kept))
        for lane, count in enumerate(kept):
            del self.rows[slot][lane][count:]

    def naive_attention(self, layer: int, queries: Tensor, counts: dict[int, int]) -> Tensor:
        """The definition, row by row: query i of n sees the first `rows - n + i + 1` rows of its lane."""
        output = torch.empty_like(queries)
        token = 0
        for slot, count in counts.items():
            for i in range(count):
                for head in range(queries.shape[1]):
                    rows = self.rows[slot][layer * self.kv_heads + head // self.group]
                    seen = rows[: len(rows) - count + i + 1]
                    keys, values = (torch.stack(part).double() for part in zip(*seen, strict=True))
                    weights = (keys @ queries[token, head].double() * self.head_dim**-0.5).softmax(0)
                    output[token, head] = weights @ values
                token += 1
        return output

    def check_integrity(self) -> None:
        for slot, table in self.tables.items():
            table.check_integrity()
            assert self.mirror.kept(slot).tolist() == table.kept.tolist()
        self.allocator.check_integrity(table.held() for table in self.tables.values())
