"""`--check`: what it prints is true, can be started from, and a mistake gets one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from models.checkpoint import Checkpoint
from models.loader import load_model
from scheduler.budget import EvictionRules
from scheduler.config import SchedulerConfig
from scheduler.scheduler import Scheduler
from server.cli import parse
from server.engine_options import default_pool_bytes
from server.memory_plan import Fit, MemoryPlan, memory_limit, plan_memory, resident_bytes, weight_sizes
from tests.models.tiny import saved, tiny_llama

MIB = 2**20
PLAN = MemoryPlan(
    weight_bytes=200 * MIB,
    pool_bytes=600 * MIB,
    token_bytes=12_960,
    whole_tokens=4_000,
    resident_bytes=500 * MIB,
    limit_bytes=1100 * MIB,
    fits=(Fit(1000, 4, 16), Fit(8000, 0, 2)),
)


def scheduler(*, evicts: bool) -> Scheduler:
    """Of two lanes and 2,000 pages of 4 rows."""
    rules = EvictionRules(min_rows=10, drop=0.25) if evicts else None
    return Scheduler(
        SchedulerConfig(
            num_lanes=2,
            num_pages=2001,
            page_size=4,
            max_model_len=2000,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            policies={"it": rules},
            default_policy="it",
            default_budget=0.2,
        )
    )


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_counted_once_each(tmp_path: Path, tied: bool) -> None:
    original = tiny_llama(tie_word_embeddings=tied)
    model = load_model(Checkpoint(saved(original, tmp_path)))
    frequencies = 4 * model.config.head_dim // 2
    assert sum(weight_sizes(model)) == 4 * sum(p.numel() for p in original.parameters()) + frequencies


def test_packed_weights_are_smaller(tmp_path: Path) -> None:
    checkpoint = Checkpoint(saved(tiny_llama(), tmp_path))
    assert sum(weight_sizes(load_model(checkpoint, torch.bfloat16))) < sum(weight_sizes(load_model(checkpoint)))


@pytest.mark.parametrize("evicts", [True, False])
def test_sequences_that_fit(tmp_path: Path, evicts: bool) -> None:
    model = load_model(Checkpoint(saved(tiny_llama(), tmp_path)))
    plan = plan_memory(model, scheduler(evicts=evicts), page_bytes=4 * 136)
    # 1,000 rows are 250 pages in each of 2 lanes. At the budget at most 200 + 50 + 1 rows of a lane, and a page that
    # is not full: (2 * 251 + 2 * 3) // 4 = 127 pages.
    assert plan.fits == (Fit(1000, 4, 2000 // 127 if evicts else None), Fit(2000, 2, 2000 // 252 if evicts else None))
    assert plan.whole_tokens == 4000
    assert plan.token_bytes == 2 * 136
    assert plan.pool_bytes == 2001 * 4 * 136
    assert 0 < plan.resident_bytes < plan.limit_bytes


def test_a_plan_that_does_not_fit_says_what_would() -> None:
    assert PLAN.problem() is None
    problem = replace(PLAN, pool_bytes=601 * MIB).problem() or ""
    assert "601 MiB" in problem
    assert "at most --kv-cache-memory-bytes 600MiB" in problem


def test_the_table_has_both_counts() -> None:
    table = "\n".join(PLAN.lines())
    assert "sequences of 1,000 4 uncompressed, 16 at the budget" in table
    assert "process, pool full 1,100 MiB of 1,100 MiB" in table
    assert "at the budget" not in "\n".join(replace(PLAN, fits=(Fit(1000, 4, None),)).lines())


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    machine = memory_limit(tmp_path)
    assert machine > resident_bytes() > 0
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("100\n")
    assert memory_limit(tmp_path) == machine
    (tmp_path / "memory.max").write_text("500000000\n")
    assert memory_limit(tmp_path) == 500_000_000


def test_a_containers_limit_counts_under_the_older_control_groups(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.usage_in_bytes").write_text("100000000\n")
    (tmp_path / "memory/memory.limit_in_bytes").write_text("500000000\n")
    assert memory_limit(tmp_path) == 500_000_000
    assert default_pool_bytes(tmp_path) == 100_000_000
    machine = memory_limit(tmp_path / "none")
    (tmp_path / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_limit(tmp_path) == machine


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--kv-polcy", "h2o"], "--kv-polcy is no option, did you mean --kv-policy?"),
        (["--kv-budgets=1"], "--kv-budgets is no option, did you mean --kv-budget?"),
        (["--frobnicate"], "--frobnicate is no option (scissorserve --help lists all)"),
        (["one", "two"], "'two' is one argument too many"),
        (["--kv-policy", "h3o"], "choose from"),
    ],
)
def test_a_wrong_flag_gets_one_line_that_says_what_is_right(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(flags, {})
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("scissorserve: error: ")
    assert sentence in line


def checked(*flags: str) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = [sys.executable, "-m", "server", "--check", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.model
@pytest.mark.usefixtures("default_model_folder")
def test_what_is_printed_starts_the_same_server(tmp_path: Path) -> None:
    flags = ["--kv-cache-memory-bytes", "64MiB", "--kv-budget", "512", "--kv-policy", "keydiff", "--api-key", "s3cret"]
    done = checked(*flags, "--served-model-name", "one", "two")
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in done.stdout
    assert "API keys: 1" in done.stdout
    file = tmp_path / "config.yaml"
    file.write_text(done.stdout)
    shown = yaml.safe_load(done.stdout)
    assert shown["kv-cache-memory-bytes"] == 64 * MIB
    assert shown.pop("generation-config") == "auto"  # is no choice left open: it names a file of the model
    assert {"auto", None} & {str(value) for value in shown.values()} == set()
    again = vars(parse(["--config", str(file)], {}))
    given = vars(parse([*flags, "--served-model-name", "one", "two"], {}))
    same = {name for name in given if given[name] not in (None, "auto")} - {"api_key", "config"}
    assert {name: again[name] for name in same} == {name: given[name] for name in same}


@pytest.mark.model
@pytest.mark.usefixtures("default_model_folder")
def test_a_pool_that_no_machine_has_is_a_mistake() -> None:
    done = checked("--kv-cache-memory-bytes", "900TiB")
    assert done.returncode == 2
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("scissorserve: error: --kv-cache-memory-bytes")
    assert "Traceback" not in done.stderr
