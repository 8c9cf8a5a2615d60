"""The event loop's lag: noticed, and told in the metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx

from server.loop_lag import LoopLag
from tests.server.stack import Stack


def block() -> None:
    """What nobody may do on the loop."""
    time.sleep(0.05)


def test_who_blocks_the_loop_is_noticed() -> None:
    late: list[float] = []

    async def main() -> None:
        lag = LoopLag(late.append, interval=0.001)
        lag.start()
        await asyncio.sleep(0)
        block()
        await asyncio.sleep(0.01)
        await lag.stop()

    asyncio.run(main())
    assert max(late) > 0.03


def test_the_lag_is_in_the_metrics(stack: Callable[..., Stack]) -> None:
    async def count(client: httpx.AsyncClient) -> bool:
        for _ in range(500):
            text = (await client.get("/metrics")).text
            (line,) = [
                line for line in text.splitlines() if line.startswith("scissorserve:event_loop_lag_seconds_count")
            ]
            if float(line.split()[-1]) > 0:
                return True
            await asyncio.sleep(0.01)
        return False

    assert stack().run(count)
