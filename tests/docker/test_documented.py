"""The commands of docs/deployment.md, as they stand there, where there is an engine that has built the image."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.docker.engine import IMAGE, docker, is_built
from tests.docker.pages import ROOT, of_docker

URL = "http://127.0.0.1:8000"
ON_HOST = {
    "server": {"environment": {"SCISSORSERVE_HOST": "127.0.0.1"}},
    "bench": {"extra_hosts": ["server:127.0.0.1"]},
}
"""What the services need on an engine without a network of its own."""

pytestmark = pytest.mark.skipif(not is_built(), reason=f"no engine has the image {IMAGE}")


def has_bridge() -> bool:
    return "bridge" in docker("network", "ls", "--format", "{{.Name}}").splitlines()


def has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0


def wait_until_ready() -> None:
    deadline = time.monotonic() + 300
    while True:
        try:
            if httpx.get(f"{URL}/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "not ready in time"
        time.sleep(0.2)


def answer() -> str:
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    said = httpx.post(f"{URL}/v1/chat/completions", json=body, timeout=120).raise_for_status().json()
    return str(said["choices"][0]["message"]["content"])


def test_the_container_of_the_page_serves_and_stops() -> None:
    (words,) = (words for words in of_docker("run") if "--publish" in words)
    if not has_bridge():
        place = words.index("--publish")
        words[place : place + 2] = ["--network", "host", "--env", "SCISSORSERVE_HOST=127.0.0.1"]
    name = "scissorserve-documented"
    docker("run", "--detach", "--name", name, *words)
    try:
        wait_until_ready()
        assert "Paris" in answer()
        docker("stop", name)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", name) == "0"
    finally:
        docker("rm", "--force", name)


def test_the_check_of_the_page_prints_the_plan() -> None:
    (words,) = (words for words in of_docker("run") if "--check" in words)
    assert "1,024 MiB" in docker("run", *words)


@pytest.fixture
def override(tmp_path: Path) -> Iterator[list[str]]:
    """Flags that let the services run in the host's network where there is no other; all is taken down at the end."""
    flags: list[str] = []
    if not has_bridge():
        file = tmp_path / "host.yaml"
        services = {name: {"network_mode": "host", **more} for name, more in ON_HOST.items()}
        text = yaml.safe_dump({"services": services}).replace("  server:\n", "  server:\n    ports: !reset []\n")
        file.write_text(text)
        flags = ["-f", str(file)]
    yield flags
    subprocess.run(compose(["-f", "docker/compose.yaml", "down", "--volumes"], flags), cwd=ROOT, check=True)


def compose(words: list[str], override: list[str]) -> list[str]:
    return ["docker", "compose", *words[:2], *override, *words[2:]]


@pytest.mark.skipif(not has_compose(), reason="no docker compose")
def test_the_services_of_the_page_run_and_go(override: list[str]) -> None:
    """Those that need no image of others."""
    (up,) = {tuple(words) for words in of_docker("compose") if "up" in words and "server" in words}
    (bench,) = (words for words in of_docker("compose") if "run" in words)
    (down,) = (words for words in of_docker("compose") if "down" in words)
    subprocess.run(compose(list(up), override), cwd=ROOT, check=True)
    assert "Paris" in answer()
    shown = subprocess.run(compose(bench, override), cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "Successful requests:                       16" in shown
    subprocess.run(compose(down, override), cwd=ROOT, check=True)
    assert docker("ps", "--quiet", "--filter", "name=scissorserve-server") == ""
