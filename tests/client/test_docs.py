"""What docs/load-testing.md says is true, and each of its commands runs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client.__main__ import main
from client.cli import parse_options
from client.plugins import load_all

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/load-testing.md").read_text(encoding="utf-8")
OURS, NOT_OURS = TEXT.split("Not there: ")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
TESTER = [shlex.split(line)[1:] for line in COMMANDS if line.startswith("scissorserve-bench ")]
FEW = ["--num-prompts", "4"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files that the commands read."""
    (tmp_path / "book.txt").write_text("It was a dark and stormy night. " * 400)
    said = [{"from": "human", "value": "Hello, who are you?"}, {"from": "gpt", "value": "I am what I am."}]
    (tmp_path / "conversations.json").write_text(json.dumps([{"conversations": said}]))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hello"}\n')
    rows = [{"timestamp": i, "input_length": 8, "output_length": 4} for i in range(4)]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path


@pytest.mark.parametrize("flags", TESTER, ids=" ".join)
def test_commands_of_the_tester_run(
    flags: list[str], serve: Callable[..., Any], wire: SimpleNamespace, folder: Path
) -> None:
    make = wire.delta if "openai-chat" in flags else None
    token = make(content=" tok") if make else wire.text(" tok")
    end = make("length") if make else wire.text("", "length")
    server = serve(lambda n: [token, token, end, wire.usage(8, 2), wire.done])
    assert main([*flags, "--base-url", server.url, *FEW]) == 0
    assert len(server.bodies) >= 4
    named = [flags[i + 1] for i, flag in enumerate(flags) if flag in ("--result-html", "--result-csv")]
    assert all(list(folder.rglob(name)) for name in named)


def test_every_command_is_tried() -> None:
    others = [line for line in COMMANDS if not line.startswith("scissorserve-bench ")]
    assert len(TESTER) >= 11
    assert others == ["python -m benchmarks.client_overhead --streams 50 200 1000"]


def test_the_overhead_benchmark_runs() -> None:
    flags = ["--streams", "2", "--rounds", "1", "--tokens", "3", "--ttft", "0.01", "--itl", "0.01"]
    command = [sys.executable, "-m", "benchmarks.client_overhead", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[-2:]] == [["2", "apart"], ["2", "together"]]


@pytest.mark.parametrize(("package", "attribute"), [("datasets", "DATASET"), ("arrivals", "ARRIVAL")])
def test_every_plugin_is_described(package: str, attribute: str) -> None:
    for name in load_all(f"client.{package}", attribute):
        assert re.search(rf"^\| .*`{name}`.* \|", TEXT, re.MULTILINE), name


def test_what_is_said_to_lack_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    lacking = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", NOT_OURS))
    assert lacking
    assert not lacking & known


def test_every_flag_that_is_named_exists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) | {"--streams"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", OURS)) <= known
