"""Attention over lane pages in C++, for any CPU: reads rows where they lie, in their own format."""

from __future__ import annotations

import torch
from torch import Tensor

from csrc.library import Kernels, KernelsMissing, PagedCall, RotaryCall, address
from paged_kv.backend import AttentionBackend
from paged_kv.batch import PagedBatch
from paged_kv.formats import bfloat16, float32, int4, int8
from paged_kv.pool import KVPool
from paged_kv.rotary import Rotary

_FORMATS = {float32.FORMAT: 0, bfloat16.FORMAT: 1, int8.FORMAT: 2, int4.FORMAT: 3}
_MEASURES = {"probability": 0, "square": 1, "unimportant": 2}


class CpuBackend(AttentionBackend):
    """Owns nothing but the call that it fills in anew for every batch. `variant`: see `Kernels`."""

    head_dim_step = 16  # the widest vector register
    reads_in_place = True

    def __init__(self, variant: str | None = None) -> None:
        self._batch: PagedBatch | None = None
        self._call = PagedCall()
        try:
            self._kernels: Kernels | None = Kernels(variant)
        except KernelsMissing as missing:
            self._kernels, self._missing = None, str(missing)

    def unavailable_reason(self) -> str | None:
        """See `AttentionBackend.unavailable_reason`."""
        return None if self._kernels else self._missing

    def __str__(self) -> str:
        return f"C++ kernels for {self._kernels.variant}" if self._kernels else "C++ kernels, not built"

    def append(self, pool: KVPool, layer: int, fused: Tensor, rotary: Rotary | None, batch: PagedBatch) -> Tensor:
        """See `AttentionBackend.append`."""
        assert self._kernels is not None
        if batch is not self._batch:
            self._prepare(pool, batch)
        heads = fused.shape[1] // pool.head_dim - 2 * batch.kv_heads
        self._call.group = heads // batch.kv_heads
        queries = torch.empty(fused.shape[0], heads, pool.head_dim)
        turns = RotaryCall(address(rotary.cosine), address(rotary.sine)) if rotary else RotaryCall()
        self._kernels.append(self._call, layer, turns, fused.float().contiguous(), queries)
        return queries

    def attend(self, pool: KVPool, layer: int, queries: Tensor, batch: PagedBatch) -> Tensor:
        """See `AttentionBackend.attend`."""
        assert self._kernels is not None
        if batch is not self._batch:
            self._prepare(pool, batch)
        queries = queries.float().contiguous()
        self._call.group = queries.shape[1] // batch.kv_heads
        output = torch.empty_like(queries)
        self._kernels.attend(self._call, layer, queries, output)
        return output

    def _prepare(self, pool: KVPool, batch: PagedBatch) -> None:
        self._starts = torch.tensor(batch.starts, dtype=torch.int64)
        self._observed = torch.tensor(batch.observed, dtype=torch.uint8)
        observation, basis, fresh = pool.observation, pool.basis, pool.fresh
        if fresh is not None:
            fresh.reserve(batch)
        self._call = PagedCall(
            keys=address(pool.keys),
            values=address(pool.values),
            state=address(pool.state),
            format=_FORMATS[pool.format],
            page_size=pool.page_size,
            head_dim=pool.head_dim,
            key_bytes=pool.keys.shape[2] * pool.keys.element_size(),
            value_bytes=pool.values.shape[2] * pool.values.element_size(),
            state_bytes=pool.state.shape[2],
            tables=address(batch.tables),
            slots=address(batch.slots),
            kept=address(batch.kept),
            starts=address(self._starts),
            positions=address(batch.positions),
            new_slots=address(batch.new_slots),
            observed=address(self._observed),
            key_basis=address(basis.keys) if basis else None,
            query_basis=address(basis.queries) if basis else None,
            value_basis=address(basis.values) if basis else None,
            output_basis=address(basis.outputs) if basis else None,
            basis_lanes=basis.keys.shape[0] if basis else 0,
            uneven=int(basis is not None and basis.is_uneven),
            fresh_keys=address(fresh.keys) if fresh else None,
            fresh_values=address(fresh.values) if fresh else None,
            new_keys=address(fresh.new_keys) if fresh else None,
            new_values=address(fresh.new_values) if fresh else None,
            fresh_rows=fresh.rows if fresh else 0,
            fresh_bytes=fresh.width if fresh else 0,
            sequences=batch.num_sequences,
            lanes=batch.tables.shape[1],
            table_width=batch.tables.shape[2],
            kv_heads=batch.kv_heads,
            measure=_MEASURES[observation.measure] if observation else 0,
            window=(observation.window or 0) if observation else 0,
            sums=observation.sums if observation else 0,
            decay=observation.decay if observation else 1.0,
            score_weights=address(pool.scorer.weights) if pool.scorer else None,
            score_bias=address(pool.scorer.bias) if pool.scorer else None,
            scores=pool.scorer.num_scores if pool.scorer else 0,
        )
        self._batch = batch


BACKEND = CpuBackend
