"""The server of a benchmark ends with the benchmark, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from benchmarks import served


def test_a_terminated_benchmark_leaves_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def sleeper(_command: list[str], **options: object) -> subprocess.Popen[bytes]:
        started.append(popen(["sleep", "600"]))
        return started[-1]

    monkeypatch.setattr(served.subprocess, "Popen", sleeper)
    monkeypatch.setattr(served, "_wait_until_healthy", lambda process, url: None)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ending, served.server():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ending.value.code == 128 + signal.SIGTERM
    assert started[0].poll() == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
