"""Flags, variables and files: which wins, and what a mistake gets."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from server.cli import engine_options, parse
from server.command import keys_in
from server.engine_options import EngineOptions, default_pool_bytes, parse_budget, parse_size
from server.file_limit import raise_file_limit
from server.launch_error import LaunchError
from server.settings import ServerSettings


def test_defaults_of_the_parser_are_those_of_the_options() -> None:
    assert engine_options(parse([], {})) == EngineOptions()


def test_a_flag_beats_a_variable_beats_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("port: 1\nkv_budget: 0.5\nkv-policy: h2o\nserved-model-name: [a, b]\ndebug-pages: true\n")
    environment = {"SCISSORSERVE_KV_POLICY": "streaming", "SCISSORSERVE_PORT": "2", "SCISSORSERVE_CACHE": "ignored"}
    options = parse(["--config", str(file), "--port", "3"], environment)
    assert (options.port, options.kv_policy, options.kv_budget) == (3, "streaming", 0.5)
    assert options.served_model_name == ["a", "b"]
    assert options.debug_pages


def test_the_model_may_come_from_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('model = "from-file"\nport = 5\n')
    assert parse(["--config", str(file)], {}).model == "from-file"
    assert parse(["--config", str(file)], {"SCISSORSERVE_MODEL": "from-variable"}).model == "from-variable"
    assert parse(["--config", str(file), "given"], {"SCISSORSERVE_MODEL": "from-variable"}).model == "given"


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["--kv-budget", "half"], {}, "neither a share such as 0.2"),
        (["--kv-budget", "0"], {}, "neither a share such as 0.2"),
        (["--kv-cache-memory-bytes", "lots"], {}, "write it as 512MiB"),
        (["--kv-pool", "4"], {}, "not an odd number of rows"),
        (["--kv-pool", "-1"], {}, "not an odd number of rows"),
        (["--port", "70000"], {}, "from 0 to 65535"),
        (["--max-num-seqs", "-1"], {}, "of at least 1"),
        ([], {"SCISSORSERVE_PROT": "8000"}, "environment sets 'prot', which is no option"),
        ([], {"SCISSORSERVE_PORT": "http"}, "not a whole number"),
        (["--config", "/nowhere.yaml"], {}, "cannot be read"),
    ],
)
def test_mistakes_get_one_line(
    arguments: list[str], environment: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments, environment)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


def test_an_empty_variable_counts_as_unset() -> None:
    assert parse([], {"SCISSORSERVE_API_KEY": "", "SCISSORSERVE_PORT": ""}).port == 8000


def test_the_default_pool_minds_a_containers_limit(tmp_path: Path) -> None:
    unlimited = default_pool_bytes(tmp_path)
    (tmp_path / "memory.current").write_text("100000000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert default_pool_bytes(tmp_path) == pytest.approx(unlimited, rel=0.2)
    (tmp_path / "memory.max").write_text("500000000\n")
    assert default_pool_bytes(tmp_path) == 100_000_000
    (tmp_path / "memory.max").write_text("50000000\n")
    assert default_pool_bytes(tmp_path) == 0


@pytest.mark.parametrize("content", ["- a\n", "just text\n", "port: [\n", "nonsense: 1\n"])
def test_files_that_make_no_sense(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(SystemExit):
        parse(["--config", str(file)], {})
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize(("text", "value"), [("0.2", 0.2), ("1.0", 1.0), ("512", 512), ("1e-1", 0.1)])
def test_budgets(text: str, value: float) -> None:
    parsed = parse_budget(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024", 1024), ("512MiB", 512 * 2**20), ("2g", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("10KB", 10_000), ("7b", 7)],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


def test_keys_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n one \n\ntwo\n")
    assert keys_in(file) == ["one", "two"]
    assert keys_in(None) == []
    file.write_text("# none\n")
    with pytest.raises(LaunchError, match="holds no key"):
        keys_in(file)
    with pytest.raises(LaunchError, match="cannot be read"):
        keys_in(tmp_path / "missing")


def test_parsers_may_be_written_as_vllm_writes_them() -> None:
    assert parse(["--tool-call-parser", "llama3_json"], {}).tool_call_parser == "llama3-json"


def test_choosing_calls_needs_a_parser() -> None:
    with pytest.raises(ValueError, match="--tool-call-parser"):
        ServerSettings(model_names=("x",), enable_auto_tool_choice=True)


def test_the_process_takes_the_descriptors_it_may_have(caplog: pytest.LogCaptureFixture) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
