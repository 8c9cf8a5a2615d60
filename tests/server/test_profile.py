"""The table that `--profile` ends with."""

from __future__ import annotations

from scheduler.stats import Observers, StepStats
from server.profile import StepProfile


def test_decoding_and_reading_are_told_apart() -> None:
    profile = StepProfile()
    observers = Observers(profile)
    for _ in range(4):
        observers.step_done(StepStats(8, 0, 8, 0.01, {"linear": 0.006, "attention": 0.003, "scheduling": 0.001}))
    observers.step_done(StepStats(512, 500, 9, 0.5, {"linear": 0.4, "attention": 0.1}))
    lines = list(profile.report())
    assert lines[0] == "Steps that only decode: 4, of 8.0 tokens, 10.00 ms"
    assert [line.split()[0] for line in lines[1:4]] == ["linear", "attention", "scheduling"]
    assert "60.0 %" in lines[1]
    assert lines[4] == "Steps that read prompts: 1, of 512.0 tokens, 500.00 ms"


def test_nothing_ran_nothing_is_told() -> None:
    assert list(StepProfile().report()) == []
