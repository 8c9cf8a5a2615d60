"""The image itself, where there is an engine that has built it: `docker build ... --tag scissorserve .`"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docker.engine import IMAGE, docker, is_built

ROOT = Path(__file__).parents[2]
CONFINED = ["--init", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"]
FLAGS = ["--kv-cache-memory-bytes", "64MiB", "--max-num-seqs", "4", "--shutdown-timeout", "60"]

pytestmark = pytest.mark.skipif(not is_built(), reason=f"no engine has the image {IMAGE}")


@dataclass(frozen=True)
class Container:
    """A server in the host's network, which needs no bridge; it listens on this machine only."""

    name: str
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def state(self, field: str) -> str:
        return docker("inspect", "--format", f"{{{{.State.{field}}}}}", self.name)

    def wait_until(self, field: str, value: str) -> None:
        deadline = time.monotonic() + 600
        while self.state(field) != value:
            assert self.state("Status") == "running" or field == "Status", docker("logs", self.name)
            assert time.monotonic() < deadline, f"{field} is not {value} in time"
            time.sleep(0.2)

    def files(self) -> list[str]:
        return sorted(docker("exec", self.name, "find", "/cache", "-printf", "%p %s\n").splitlines())

    def ask(self, path: str, **body: Any) -> Any:
        return httpx.post(self.url + path, json=body, timeout=120).raise_for_status().json()


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    one = Container(f"scissorserve-test-{port}", port)
    place = ["--network", "host", "--env", "SCISSORSERVE_HOST=127.0.0.1", "--env", f"SCISSORSERVE_PORT={port}"]
    docker("run", "--detach", "--name", one.name, *place, *CONFINED, "--memory", "2g", IMAGE, *FLAGS)
    try:
        yield one
    finally:
        docker("rm", "--force", "--volumes", one.name)


@pytest.fixture
def running(container: Container) -> Container:
    """The container, started again if a test before has ended it."""
    docker("start", container.name)
    container.wait_until("Health.Status", "healthy")
    return container


def load_on(url: str, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "client", "--base-url", url, "--ignore-eos", "--input-len", "64", *flags]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_it_becomes_healthy_and_answers(running: Container) -> None:
    said = running.ask(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=12,
    )
    assert "Paris" in said["choices"][0]["message"]["content"]


def test_it_has_no_rights_and_writes_only_to_its_volume(running: Container) -> None:
    script = (
        "id -u; touch /x /opt/x /home/x; grep CapEff /proc/self/status; find / -xdev -lname '/root*'; touch /cache/x"
    )
    done = subprocess.run(
        ["docker", "exec", running.name, "sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10001", "CapEff:", "0000000000000000"]
    assert done.stderr.count("Read-only file system") == 3


def test_the_kernels_are_in_it(running: Container) -> None:
    done = subprocess.run(["docker", "logs", running.name], capture_output=True, text=True, check=True)
    assert re.search(r"attention: C\+\+ kernels", done.stderr), "the image was built without a C++ compiler"


def test_the_tester_in_the_image_prints_its_table(running: Container) -> None:
    flags = ["--base-url", running.url, "--num-prompts", "4", "--input-len", "32", "--output-len", "8"]
    shown = docker("run", "--rm", "--network", "host", *CONFINED, "--entrypoint", "scissorserve-bench", IMAGE, *flags)
    assert "Successful requests:                        4" in shown


def test_a_stop_in_the_middle_of_a_stream_waits_for_it(running: Container) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=120) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        next(lines)
        stop = subprocess.Popen(["docker", "stop", "--time", "90", running.name], stdout=subprocess.DEVNULL)
        *_, last, done = lines
    assert done == "[DONE]"
    assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert stop.wait(120) == 0
    assert (running.state("ExitCode"), running.state("OOMKilled")) == ("0", "false")


def test_killed_in_the_middle_of_a_load_it_starts_again(running: Container) -> None:
    before = running.files()
    with load_on(running.url, "--num-prompts", "8", "--max-concurrency", "4", "--output-len", "900") as load:
        while httpx.get(f"{running.url}/load", timeout=60).json()["server_load"] < 4:
            assert load.poll() is None
            time.sleep(0.1)
        docker("kill", "--signal", "KILL", running.name)
        report, _ = load.communicate(timeout=120)
    assert load.returncode == 1
    lost = {kind: int(count) for count, kind in re.findall(r"^(\d) (\w+): ", report, re.MULTILINE)}
    assert lost.keys() == {"disconnected", "connect"}, report
    assert lost["disconnected"] >= 4, report
    assert sum(lost.values()) == 8, report
    docker("start", running.name)
    running.wait_until("Health.Status", "healthy")
    assert running.files() == before
    assert running.ask("/v1/completions", prompt="The capital of France is", max_tokens=3, temperature=0)["choices"]


@pytest.mark.parametrize("user", ["1234:1234", "1000910000:0", "nobody"])
def test_any_user_can_run_it(user: str) -> None:
    """Also one without an entry in the list of users, as orchestrators choose them; the cache is its own."""
    cache = ["--tmpfs", "/cache:size=1g,mode=1777"]
    shown = docker("run", "--rm", "--network", "none", *CONFINED, *cache, "--user", user, IMAGE, "--check", *FLAGS[:2])
    assert "kv-budget" in shown


def test_a_volume_that_cannot_be_written_to_is_named() -> None:
    volume = ["--tmpfs", "/volume:mode=755", "--env", "SCISSORSERVE_CACHE=/volume/converted"]
    command = ["docker", "run", "--rm", "--network", "none", *volume, IMAGE, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "/volume/converted" in done.stderr
