"""The parent's side of the protocol: one engine at a time, in a process group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engines.busy import CpuTime, taken_by_others
from benchmarks.engines.catalog import Spec
from benchmarks.engines.protocol import Closing, Job, Outcome, Run, from_line

_PATIENCE = 30  # seconds


class EngineFailed(Exception):
    """A worker ended before its job was done; the message says where its output is."""


@dataclass(slots=True)
class Report:
    """What one worker told: its runs in order, then how it closed. `others`: see `taken_by_others`, of that time."""

    outcomes: list[Outcome] = field(default_factory=list)
    closing: Closing | None = None
    others: float = 0.0


def work(
    spec: Spec, runs: list[Run], threads: int, flags: list[str], log: Path, told: Callable[[], object] = lambda: None
) -> Report:
    """Let `spec`'s worker do `runs`; `told` is called after each. What it prints besides goes to `log`.

    Raises EngineFailed. Nothing that the worker started outlives this call.
    """
    model = str((spec.home / spec.model).resolve()) if spec.peer is not None else ""
    job = Job(model, threads, time.time(), runs, flags if spec.peer is None else [])
    log.parent.mkdir(parents=True, exist_ok=True)
    before = CpuTime.now()
    command = [spec.interpreter, "-m", f"benchmarks.engines.{spec.worker}"]
    environment = spec.variables(threads, job.most_tokens)
    pipe = subprocess.PIPE
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=errors, env=environment, text=True, start_new_session=True
        ) as process,
        _group(process),
    ):
        report = _listen(process, job, told)
    report.others = taken_by_others(before, CpuTime.now())
    if report.closing is None:
        raise EngineFailed(f"{spec.label} ended with status {process.returncode}; its output is in {log}")
    return report


def _listen(process: subprocess.Popen[str], job: Job, told: Callable[[], object]) -> Report:
    assert process.stdin is not None
    assert process.stdout is not None
    report = Report()
    try:
        process.stdin.write(job.to_json())
        process.stdin.close()
    except BrokenPipeError:
        return report  # it ended before it read the job
    for line in process.stdout:
        said = from_line(line)
        if isinstance(said, Closing):
            report.closing = said
        else:
            report.outcomes.append(said)
            told()
    return report


@contextmanager
def _group(process: subprocess.Popen[str]) -> Iterator[None]:
    """After the block, give the worker time to stop what it started, then end what is left of its group."""
    try:
        yield
    except BaseException:
        process.terminate()
        raise
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
