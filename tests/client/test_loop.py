"""What comes in the same moment is stamped with the same moment, whatever is done about the first of it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from client.backlog import Backlog
from client.connection import Connection
from client.loop import StampingLoop, run, waited

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
WORK_S = 0.05


def work() -> None:
    time.sleep(WORK_S)


class Stamps:
    """Notes when each part of a body came."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def sent(self, at: float) -> None:
        pass

    def head(self, status: int, headers: dict[str, str]) -> None:
        assert (status, headers["content-length"]) == (200, "2")

    def body(self, at: float, data: bytes) -> None:
        assert data == b"hi"
        self.at.append(at)


class SlowConnection(Connection):
    """Does something else before it takes what came."""

    def data_received(self, data: bytes) -> None:
        work()
        super().data_received(data)


async def stamps_of_two(answer: Callable[[], None], near: list[socket.socket]) -> list[float]:
    loop, backlog, stamps = asyncio.get_running_loop(), Backlog(), Stamps()
    connections = [(await loop.create_connection(lambda: SlowConnection(backlog), sock=each))[1] for each in near]
    exchanges = [each.exchange("GET", "/", [("Host", "x")], b"", stamps, time.perf_counter) for each in connections]
    async with asyncio.TaskGroup() as group:
        for exchange in exchanges:
            group.create_task(exchange)
        await asyncio.sleep(0)
        answer()
    for connection in connections:
        connection.abort()
    await asyncio.sleep(0)  # the turn in which transports close
    return stamps.at


@pytest.mark.parametrize(("runner", "sees_it"), [(run, True), (asyncio.run, False)], ids=["stamping", "asyncio"])
def test_answers_of_one_moment_have_one_stamp(runner: Callable[..., list[float]], sees_it: bool) -> None:
    pairs = [socket.socketpair() for _ in range(2)]

    def answer() -> None:
        for _, far in pairs:
            far.sendall(ANSWER)

    first, second = runner(stamps_of_two(answer, [near for near, _ in pairs]))
    for _, far in pairs:
        far.close()
    assert (second - first < WORK_S / 2) == sees_it


def test_what_is_handed_out_has_waited_since_the_sockets_were_looked_at() -> None:
    async def ask() -> float:
        assert isinstance(asyncio.get_running_loop(), StampingLoop)
        await asyncio.sleep(0)
        work()
        return waited()

    assert run(ask()) >= WORK_S


def test_a_loop_of_another_kind_claims_nothing() -> None:
    async def ask() -> float:
        work()
        return waited()

    assert asyncio.run(ask()) == 0.0
