"""What every attention backend does, and how the option's name becomes one."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from paged_kv.batch import PagedBatch
from paged_kv.plugins import load
from paged_kv.pool import KVPool

_FASTEST_FIRST = ("cpu", "reference")


class AttentionBackend(ABC):
    """Attends over lane pages. Keeps nothing of sequences between calls; the runner's thread alone calls it."""

    @abstractmethod
    def unavailable_reason(self, head_dim: int) -> str | None:
        """Why this backend cannot run here, for rows of `head_dim` numbers; None if it can."""

    @abstractmethod
    def __str__(self) -> str:
        """What computes, in words for an operator."""

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
        return next(kind for kind in map(_backend, _FASTEST_FIRST) if kind.unavailable_reason(head_dim) is None)
    backend = _backend(name)
    reason = backend.unavailable_reason(head_dim)
    if reason is not None:
        raise ValueError(f"attention backend {name!r} cannot run here: {reason}")
    return backend


def _backend(name: str) -> AttentionBackend:
    backend: AttentionBackend = load("paged_kv.attention", name, "BACKEND")()
    return backend
