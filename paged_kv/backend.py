"""What every attention backend does, and how the option's name becomes one."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from paged_kv.batch import PagedBatch
from paged_kv.plugins import load
from paged_kv.pool import KVPool
from paged_kv.rotary import Rotary

_FASTEST_FIRST = ("cpu", "reference")


class AttentionBackend(ABC):
    """Attends over lane pages. Keeps nothing of sequences between calls; the runner's thread alone calls it.

    `head_dim` must be a multiple of `head_dim_step`. `reads_in_place`: smaller rows are faster, not slower.
    """

    head_dim_step = 1
    reads_in_place = False

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """Why this backend cannot run here; None if it can."""

    @abstractmethod
    def __str__(self) -> str:
        """What computes, in words for an operator."""

    def append(self, pool: KVPool, layer: int, fused: Tensor, rotary: Rotary | None, batch: PagedBatch) -> Tensor:
        """Store the new rows of `layer`, and return the queries to attend with, [T, heads, head_dim].

        `fused` [T, (heads + 2 * kv_heads) * head_dim] holds queries, keys and values side by side, not yet rotated.
        If the pool has a scorer, the rows are scored.
        """
        heads = fused.shape[1] // pool.head_dim - 2 * batch.kv_heads
        split = (heads, batch.kv_heads, batch.kv_heads)
        parts: tuple[Tensor, ...] = fused.view(fused.shape[0], -1, pool.head_dim).split(split, dim=1)
        queries, keys, values = parts
        queries, keys = (queries, keys) if rotary is None else (rotary(queries), rotary(keys))
        lanes = slice(layer * batch.kv_heads, (layer + 1) * batch.kv_heads)
        slots = batch.new_slots[:, lanes]
        pool.write(slots, keys, values, lanes.start)
        if pool.fresh is not None:
            pool.fresh.enter(lanes.start, *pool.turned(keys, values, lanes.start), batch)
        if pool.scorer is not None:
            pool.state.flatten(0, 1).index_copy_(0, slots.flatten(), pool.scorer.state(layer, fused).flatten(0, 1))
        return queries

    @abstractmethod
    def attend(self, pool: KVPool, layer: int, queries: Tensor, batch: PagedBatch) -> Tensor:
        """Attention of `queries` [T, heads, head_dim] over the rows of `layer`; returns float32 [T, heads, head_dim].

        The new rows must be in the pool. Query i of a sequence's n new ones sees, in each lane, its first
        `kept - n + i + 1` rows. Scores are scaled by `head_dim ** -0.5`; query head h reads KV head
        `h // (heads / kv_heads)`. Where `batch.observed` says so, the pool's state takes note of the weights.
        """


def load_backend(name: str, head_dim: int) -> AttentionBackend:
    """A new backend of the kind called `name` (a file in `paged_kv/attention`); "auto": the fastest that can run.

    Raises ValueError if it can't run.
    """
    if name == "auto":
        return next(kind for kind in map(_backend, _FASTEST_FIRST) if _obstacle(kind, head_dim) is None)
    backend = _backend(name)
    obstacle = _obstacle(backend, head_dim)
    if obstacle is not None:
        raise ValueError(f"attention backend {name!r} cannot run here: {obstacle}")
    return backend


def _obstacle(backend: AttentionBackend, head_dim: int) -> str | None:
    if head_dim % backend.head_dim_step:
        return f"head_dim {head_dim} is no multiple of {backend.head_dim_step}"
    return backend.unavailable_reason()


def _backend(name: str) -> AttentionBackend:
    backend: AttentionBackend = load("paged_kv.attention", name, "BACKEND")()
    return backend
