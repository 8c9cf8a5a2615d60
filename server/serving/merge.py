"""Several streams as one, each item with the number of its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def merge(streams: Sequence[AsyncIterable[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Items as they come, at most one per stream waiting here. Closing the iterator leaves the streams as they are."""
    if len(streams) == 1:
        async for item in streams[0]:
            yield 0, item
        return
    iterators = [aiter(stream) for stream in streams]
    waiting = {asyncio.ensure_future(_next(iterator)): number for number, iterator in enumerate(iterators)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                number = waiting.pop(task)
                for item in task.result():
                    waiting[asyncio.ensure_future(_next(iterators[number]))] = number
                    yield number, item
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _next(iterator: AsyncIterator[T]) -> list[T]:
    """The next item in a list; the list is empty at the end."""
    async for item in iterator:
        return [item]
    return []
