"""The worker's side of the protocol. Standard library only: every engine's interpreter imports it."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TextIO

from benchmarks.engines.protocol import Closing, Job, Outcome, Run, to_line
from benchmarks.engines.timing import window


class Engine(ABC):
    """An engine that is ready for prompts. `started`: when its start began, in seconds of the epoch."""

    version: str
    started: float

    @classmethod
    @abstractmethod
    def open(cls, job: Job) -> AbstractContextManager[Engine]:
        """Start the engine; leaving the block stops it."""

    @abstractmethod
    def run(self, run: Run) -> list[list[float]]:
        """Arrivals of tokens per sequence, in seconds since the prompts were sent. Leaves the engine idle."""

    def process(self) -> int:
        """Whose memory counts, with its children's."""
        return os.getpid()


class SteppedEngine(Engine):
    """An engine that does one step of all its sequences at a time, on this thread of the worker."""

    @abstractmethod
    def __init__(self, job: Job) -> None:
        """Load the model."""

    @classmethod
    @contextmanager
    def open(cls, job: Job) -> Iterator[SteppedEngine]:
        """See Engine. The start began with the worker's."""
        engine = cls(job)
        engine.started = job.spawned
        yield engine

    def prepare(self, run: Run) -> None:
        """Get ready for `run`, untimed."""

    @abstractmethod
    def add(self, run: Run) -> None:
        """Queue the run's prompts, numbered from 0, to be continued greedily and past any end-of-sequence token."""

    @abstractmethod
    def step(self) -> Iterable[int]:
        """Do one step; the number of each sequence that brought a token, once per token."""

    @abstractmethod
    def clear(self) -> None:
        """Forget all sequences."""

    def run(self, run: Run) -> list[list[float]]:
        """See Engine."""
        self.prepare(run)
        arrivals: list[list[float]] = [[] for _ in run.prompts]
        began = time.perf_counter()
        self.add(run)
        while window(arrivals, run.new_tokens) is None:
            numbers = list(self.step())
            moment = time.perf_counter() - began
            for number in numbers:
                arrivals[number].append(moment)
        self.clear()
        return arrivals


def serve(kind: type[Engine]) -> None:
    """Read the job, start the engine, do the runs, tell of each."""
    lines = _claim_stdout()
    job = Job.from_json(sys.stdin.read())
    with kind.open(job) as engine:
        for run in job.runs:
            arrivals = engine.run(run)
            lines.write(to_line(Outcome(run.name, arrivals, time.time() - engine.started)))
        lines.write(to_line(Closing(engine.version, peak_memory(engine.process()))))


def peak_memory(process: int) -> int:
    """The most resident bytes that `process` and its living children have had, each by itself."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    children = [
        int(child)
        for thread in Path(f"/proc/{process}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    own = fields.get("VmHWM", "0 kB")  # a child that has ended, and that nobody has asked after, has no memory
    return int(own.split()[0]) * 1024 + sum(map(peak_memory, children))


def _claim_stdout() -> TextIO:
    """Keep the way to the parent for the protocol; whatever else prints goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return lines
