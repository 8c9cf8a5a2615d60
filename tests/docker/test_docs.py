"""The commands that docs/deployment.md and docs/operations.md give are ones that the programs take."""

from __future__ import annotations

import re

import pytest
import yaml

from server.cli import parse
from tests.docker.pages import ROOT, commands, of_docker, without_environment

HERE = ROOT / "tests/docker"
OF_OTHERS = {"git", "apt-get", "debootstrap", "for", "rm", "tar", "done", "python"}
"""Programs of the recipe for a machine without a registry."""


def test_every_command_is_looked_at() -> None:
    programs = {without_environment(words)[0] for words in commands()}
    assert programs == {"docker", *OF_OTHERS}
    verbs = {without_environment(words)[1] for words in commands() if without_environment(words)[0] == "docker"}
    assert verbs == {"build", "run", "compose", "import"}


@pytest.mark.parametrize("words", of_docker("build"), ids=" ".join)
def test_the_image_is_built_from_what_is_there(words: list[str]) -> None:
    file = words[words.index("--file") + 1]
    known = re.findall(r"^ARG (\w+)", (ROOT / file).read_text(), re.MULTILINE)
    given = [words[i + 1].partition("=")[0] for i, word in enumerate(words) if word == "--build-arg"]
    assert set(given) <= set(known)
    assert words[words.index("--tag") + 1] == "scissorserve"
    assert words[-1] == "."


@pytest.mark.parametrize("words", of_docker("run"), ids=" ".join)
def test_a_container_gets_options_of_the_server_and_its_volume(words: list[str]) -> None:
    image = words.index("scissorserve")
    parse(words[image + 1 :], {})
    assert words[words.index("--volume") + 1].endswith(":/cache")
    if "--publish" in words:
        assert words[words.index("--publish") + 1] == "127.0.0.1:8000:8000"
        limit = parse(words[image + 1 :], {}).kv_cache_memory_bytes + 2**30
        assert int(words[words.index("--memory") + 1].removesuffix("g")) * 2**30 >= limit


@pytest.mark.parametrize("words", of_docker("compose"), ids=" ".join)
def test_compose_is_asked_for_services_that_it_has(words: list[str]) -> None:
    flag, file, verb, *rest = words
    services = yaml.safe_load((ROOT / file).read_text())["services"]
    assert flag == "-f"
    assert verb in ("up", "run", "down")
    assert {word for word in rest if not word.startswith("--")} <= set(services)
    assert {word for word in rest if word.startswith("--")} <= {"--build", "--wait", "--detach", "--rm"}


def test_the_tests_that_are_named_are_there() -> None:
    named = [word for words in commands() if words[0] == "python" for word in words if word.startswith("tests/")]
    assert [ROOT / word for word in named] == [HERE]
