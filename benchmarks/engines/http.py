"""Worker for this project's server, through HTTP as users see it: streamed completions, all sent at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from benchmarks.engines.protocol import Job, Run
from benchmarks.engines.timing import window
from benchmarks.engines.worker import Engine, serve
from benchmarks.served import Running, server, stream
from server.cli import own_version


class _Complete(Exception):
    """All has been heard that is to be timed; ends every stream."""


class Served(Engine):
    """A server with the job's flags, in a process of its own.

    Streams ask for logprobs, so that no token goes unheard: without, one that completes no character sends no event.
    """

    def __init__(self, server: Running, started: float) -> None:
        self.version = own_version()
        self.started = started
        self._server = server

    @classmethod
    @contextmanager
    def open(cls, job: Job) -> Iterator[Served]:
        """See Engine. The start begins with the server's."""
        started = time.time()
        with server(*job.flags) as running:
            yield cls(running, started)

    def run(self, run: Run) -> list[list[float]]:
        """See Engine."""
        arrivals = asyncio.run(_streams(self._server.url, run))
        while httpx.get(f"{self._server.url}/load").json()["server_load"]:
            time.sleep(0.01)  # streams that were left end with the step under way
        return arrivals

    def process(self) -> int:
        """See Engine."""
        return self._server.pid


async def _streams(url: str, run: Run) -> list[list[float]]:
    arrivals: list[list[float]] = [[] for _ in run.prompts]

    async def follow(client: httpx.AsyncClient, number: int, began: float) -> None:
        def heard() -> None:
            arrivals[number].append(time.perf_counter() - began)
            is_last = number == len(run.prompts) - 1  # looking once a step is enough, and takes less from the server
            if is_last and window(arrivals, run.new_tokens) is not None:
                raise _Complete

        await stream(client, run.prompts[number], run.most_new_tokens, heard=heard, logprobs=0)

    limits = httpx.Limits(max_connections=len(run.prompts))
    try:
        async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client, asyncio.TaskGroup() as group:
            began = time.perf_counter()
            for number in range(len(run.prompts)):
                group.create_task(follow(client, number, began))
    except* _Complete:
        pass
    return arrivals


if __name__ == "__main__":
    serve(Served)
