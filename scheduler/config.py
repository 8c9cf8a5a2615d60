"""The scheduler's settings: resolved once, then frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scheduler.budget import EvictionRules


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes of the pool and the model, limits, and which eviction policies requests may ask for.

    `policies` maps each allowed policy to its rules; None marks one that never evicts. `debug_pages` makes plans carry
    the pages that fell free, so that the runner can poison them. `prefix_caching`: sequences that begin alike share
    rows, from positions that are multiples of `block` on.
    """

    num_lanes: int
    num_pages: int
    page_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    policies: Mapping[str, EvictionRules | None]
    default_policy: str
    default_budget: float | int
    evict: Literal["pressure", "always"] = "pressure"
    order: Literal["fcfs", "priority"] = "fcfs"
    max_num_queued: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    debug_pages: bool = False
    prefix_caching: bool = False
    block: int = 1

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must exceed max_num_seqs "
                f"({self.max_num_seqs}), or prompts would never be read while every sequence decodes"
            )
        if self.default_policy not in self.policies:
            raise ValueError(f"unknown default policy {self.default_policy!r}; known: {', '.join(self.policies)}")
