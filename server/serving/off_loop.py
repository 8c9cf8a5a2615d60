"""Keeps long work from stopping everybody else's streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_INLINE = 2_000  # characters or tokens; for so little a thread costs more than the work


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """The result of `work`, which a thread does if it has to do with more than a few thousand characters or tokens."""
    return work() if size <= _INLINE else await asyncio.to_thread(work)
