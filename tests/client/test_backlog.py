"""Work waits while bytes come in, is never forgotten, and keeps its order."""

from __future__ import annotations

import asyncio

from client.backlog import MAX_POSTPONED, Backlog


def test_jobs_are_done_in_order() -> None:
    async def go() -> list[int]:
        backlog, done, all_done = Backlog(), list[int](), asyncio.Event()
        for i in range(500):
            backlog.add(lambda i=i: done.append(i))
        backlog.add(all_done.set)
        assert not done
        await all_done.wait()
        return done

    assert asyncio.run(go()) == list(range(500))


def test_jobs_wait_while_more_come_but_not_for_ever() -> None:
    async def go() -> list[int]:
        backlog, done = Backlog(), list[int]()
        waited = []
        for _ in range(4 * MAX_POSTPONED):
            backlog.add(lambda: done.append(0))
            await asyncio.sleep(0)
            waited.append(len(done))
        return waited

    waited = asyncio.run(go())
    assert waited[MAX_POSTPONED // 2] == 0
    assert waited[-1] >= MAX_POSTPONED


def test_a_job_may_add_another() -> None:
    async def go() -> None:
        backlog, done = Backlog(), asyncio.Event()
        backlog.add(lambda: backlog.add(done.set))
        await done.wait()

    asyncio.run(go())
