"""What goes between the comparison and its workers, and how a worker times an engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.engines.busy import CpuTime, taken_by_others
from benchmarks.engines.catalog import SPECS, Spec
from benchmarks.engines.process import EngineFailed, work
from benchmarks.engines.protocol import Closing, Job, Outcome, Run, from_line, to_line
from benchmarks.engines.worker import SteppedEngine, peak_memory


class Scripted(SteppedEngine):
    """Reads one prompt a step, and decodes those that are read in the same step."""

    def __init__(self, job: Job) -> None:
        self.waiting: list[int] = []
        self.reading: list[int] = []
        self.steps = 0

    def add(self, run: Run) -> None:
        self.waiting = list(range(len(run.prompts)))

    def step(self) -> Iterable[int]:
        self.steps += 1
        self.reading += self.waiting[:1]
        del self.waiting[:1]
        return list(self.reading)

    def clear(self) -> None:
        self.reading.clear()


JOB = Job(
    "model", 2, 0.5, [Run("decode 3", [[1], [2, 3], [4]], 2), Run("cold start", [[5] * 9], 0)], ["--kv-budget", "1"]
)


def test_a_job_survives_the_way_to_the_worker() -> None:
    assert Job.from_json(JOB.to_json()) == JOB


def test_a_job_knows_what_memory_it_needs() -> None:
    assert JOB.most_sequences == 3
    assert JOB.most_tokens == 4 + 3 * JOB.runs[0].most_new_tokens


@pytest.mark.parametrize("value", [Outcome("decode 1", [[0.1, 0.2]], 3.0), Closing("1.2", 2**30)])
def test_a_line_survives_the_way_back(value: Outcome | Closing) -> None:
    assert from_line(to_line(value)) == value


@pytest.mark.parametrize("line", ["loading the model\n", "[1]\n", '{"run": "decode 1"}\n'])
def test_what_no_worker_wrote_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"no line of a worker|Expecting value"):
        from_line(line)


def test_an_engine_is_stepped_until_all_have_decoded_long_enough_and_then_cleared() -> None:
    engine = Scripted(JOB)
    arrivals = engine.run(JOB.runs[0])
    assert [len(moments) for moments in arrivals] == [5, 4, 3]
    assert engine.steps == 5
    assert engine.reading == []


def test_tokens_of_one_step_arrive_at_one_moment() -> None:
    arrivals = Scripted(JOB).run(JOB.runs[0])
    assert arrivals[0][2] == arrivals[1][1] == arrivals[2][0]


def test_peak_memory_counts_living_children() -> None:
    alone = peak_memory(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        together = peak_memory(os.getpid())
        assert child.stdin is not None
        child.stdin.close()
    assert together > alone > 2**20


def test_a_child_that_has_ended_but_was_not_waited_for_has_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert peak_memory(child.pid) == 0
        assert peak_memory(os.getpid()) > 2**20


def test_what_others_took_is_neither_idle_nor_ours() -> None:
    before, after = CpuTime(total=100.0, busy=50.0, own=10.0), CpuTime(total=120.0, busy=65.0, own=20.0)
    assert taken_by_others(before, after) == (15.0 - 10.0) / 20.0


def test_time_of_children_that_have_ended_is_ours() -> None:
    before = CpuTime.now()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    after = CpuTime.now()
    assert after.total > before.total
    assert after.own > before.own


def test_a_worker_that_ends_early_is_an_error_that_names_its_output(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    silent = Spec("silent", "Silent", "none", worker="protocol")
    with pytest.raises(EngineFailed, match=r"Silent ended with status 0.*log\.txt"):
        work(silent, JOB.runs, 1, [], log)


def test_engines_that_are_not_set_up_say_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = {spec.name: spec.missing() for spec in SPECS.values()}
    assert [name for name, line in lines.items() if line is None] == ["scissorserve", "local"]
    assert all("make peers" in line for line in lines.values() if line is not None)
