"""`scissorserve calibrate` from end to end, and what the server makes of there being a calibration or none."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

import models.calibration_file
from benchmarks.local import generate
from models.calibration_file import calibration_path, read_calibration, write_calibration
from models.calibrator import Calibrator
from models.checkpoint import Checkpoint
from models.errors import ModelError
from paged_kv.calibration import Calibration
from paged_kv.lanes import LaneProfile
from paged_kv.plugins import names
from paged_kv.scoring import LinearScorer
from scheduler.admission import checked_budget
from scheduler.errors import RequestRejected
from scheduler.request import GenerationRequest, SamplingParams
from server.__main__ import main
from server.calibrate import main as calibrate
from server.cli import parse
from server.engine_options import EngineOptions
from server.eviction_options import drivers_of, offered_policies, with_policy
from server.launch import assemble
from server.launch_error import LaunchError
from tests.models.tiny import prompt, saved, tiny_llama


def model_in(folder: Path, **changes: int) -> Path:
    """`folder`, which now holds a tiny model with one token for each byte."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(BPE({symbol: number for number, symbol in enumerate(symbols)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    shape = {"vocab_size": 256, "num_hidden_layers": 2, "max_position_embeddings": 1100} | changes
    return saved(tiny_llama(**shape), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose passages are 512 tokens."""
    return model_in(tmp_path_factory.mktemp("model"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Three passages of text."""
    words = [f"{number * number}" for number in prompt(600, vocabulary=999)]
    (tmp_path / "text.txt").write_text(" ".join(words)[: 3 * 512 + 100], encoding="utf-8")
    return tmp_path / "text.txt"


@pytest.fixture(autouse=True)
def nothing_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only what a test makes is found."""
    monkeypatch.setattr(models.calibration_file, "_SHIPPED", tmp_path / "shipped")


def test_the_command_makes_what_the_server_finds(
    folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    assert main(["calibrate", str(folder), "--text", str(text), "--passages", "2", "--cache-dir", str(cache)]) == 0
    fingerprint = Checkpoint(folder).fingerprint()
    path = calibration_path(fingerprint, cache)
    assert f"Wrote {path}" in capsys.readouterr().out
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert read_calibration(path, fingerprint).scorer.weights.shape == (2, 2, 2, 64)

    assembly = assemble(EngineOptions(str(folder), cache, kv_cache_memory_bytes=2**22, kv_evict="always"))
    assert assembly.options.kv_policy == "calibrated"
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    made = generate(assembly, [GenerationRequest("it", tuple(prompt(300)), params)], check=True)
    assert len(made["it"]) == 20
    assert assembly.scheduler.stats().rows_evicted_total > 0


def test_variables_of_the_server_count_here_too(folder: Path, text: Path, tmp_path: Path) -> None:
    environment = {"SCISSORSERVE_MODEL": str(folder), "SCISSORSERVE_CACHE_DIR": str(tmp_path / "cache")}
    assert calibrate(["--text", str(text), "--passages", "1"], environment) == 0
    assert calibration_path(Checkpoint(folder).fingerprint(), tmp_path / "cache").is_file()


def test_interrupted_it_goes_on_where_it_stopped(
    folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Calibrator.add

    def add_or_stop(self: Calibrator, passage: Sequence[int]) -> None:
        if self.count == 2:
            signal.raise_signal(signal.SIGINT)
        add(self, passage)

    command = [str(folder), "--text", str(text), "--out", str(tmp_path / "it.safetensors")]
    with monkeypatch.context() as patch:
        patch.setattr(Calibrator, "add", add_or_stop)
        assert calibrate(command, {}) == 130
    assert "goes on where this one stopped" in capsys.readouterr().err
    assert {file.name for file in tmp_path.glob("it*")} == {"it.safetensors.partial"}

    assert calibrate(command, {}) == 0
    assert "Going on after 2 of 3 passages" in capsys.readouterr().out
    assert {file.name for file in tmp_path.glob("it*")} == {"it.safetensors"}

    assert calibrate([*command[:-1], str(tmp_path / "whole")], {}) == 0
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "it.safetensors").read_bytes()


def test_any_name_of_a_file_will_do(folder: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "it.partial"  # a name that is used while measuring, if nobody takes care
    assert calibrate([str(folder), "--text", str(text), "--passages", "1", "--out", str(out)], {}) == 0
    assert read_calibration(out, Checkpoint(folder).fingerprint())
    assert {file.name for file in tmp_path.glob("it*")} == {out.name}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--text", "{tmp}/short.txt"], "no text has the 512 tokens of a passage; give longer files with --text"),
        (["--text", "{tmp}/missing.txt"], "--text cannot be read"),
        (["--text", "{tmp}/latin.txt"], "--text cannot be read"),
        (["--text", "{tmp}"], "--text cannot be read"),
        (["--out", "{tmp}"], "cannot be written; name a file"),
        (["--out", "{tmp}/short.txt/it"], "cannot be written"),
        (["--passages", "0"], "'0' is not a whole number of at least 1"),
        (["--passages", "many"], "'many' is not a whole number"),
        (["--passage", "3", "--txt"], "is no option"),
        (["another"], "'another' is one argument too many"),
    ],
)
def test_mistakes_get_one_line(
    arguments: list[str], sentence: str, folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9" * 600)
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    try:
        read = [] if "--text" in given else ["--text", str(text)]
        code: int | str | None = calibrate([str(folder), *given, *read], {})
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("scissorserve calibrate: error: ")
    assert sentence in line


def test_a_model_that_is_none_and_one_with_too_short_a_context_get_one_line(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate([str(tmp_path / "nothing.gguf"), "--text", str(text)], {}) == 2
    assert "no such file" in capsys.readouterr().err
    small = model_in(tmp_path / "small", max_position_embeddings=1000)
    assert calibrate([str(small), "--text", str(text), "--cache-dir", str(tmp_path)], {}) == 2
    assert "context of 1000 tokens is too short to calibrate" in capsys.readouterr().err


def test_both_helps_speak_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["calibrate", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        assert "scissorserve calibrate" in " ".join(capsys.readouterr().out.split())


def a_calibration(checkpoint: Checkpoint, path: Path) -> Calibration:
    """One that fits `checkpoint`, in `path`."""
    scorer = LinearScorer(torch.zeros(2, 2, 2, 64), torch.zeros(2, 2, 2))
    made = Calibration(scorer, LaneProfile(torch.tensor([0.25, 0.5]), torch.tensor([[0.25] * 4, [0.5] * 4])))
    write_calibration(path, made, checkpoint.fingerprint(), {})
    return made


@pytest.fixture
def options(folder: Path, tmp_path: Path) -> EngineOptions:
    """Of a server with an empty cache."""
    return EngineOptions(str(folder), tmp_path, kv_cache_memory_bytes=2**22)


def test_auto_is_calibrated_where_the_model_is(options: EngineOptions, folder: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint(folder)
    a_calibration(checkpoint, calibration_path(checkpoint.fingerprint(), tmp_path))
    found, calibration = with_policy(options, checkpoint)
    assert (found.kv_policy, found.kv_lanes) == ("calibrated", None)
    assert calibration is not None
    assert with_policy(replace(options, kv_policy="h2o"), checkpoint)[1] is None
    followed, calibration = with_policy(replace(options, kv_policy="h2o", kv_lanes="profile"), checkpoint)
    assert followed.kv_policy == "h2o"
    assert calibration is not None


def test_a_calibration_that_nothing_asks_for_is_spoken_of(
    options: EngineOptions, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_calibration(Checkpoint(folder), tmp_path / "it")
    given = replace(options, kv_calibration=tmp_path / "it")
    for policy, lanes in (("auto", None), ("calibrated", None), ("h2o", "profile")):
        assert with_policy(replace(given, kv_policy=policy, kv_lanes=lanes), Checkpoint(folder))[1] is not None
    with_policy(replace(options, kv_policy="h2o"), Checkpoint(folder))
    assert not caplog.records
    assert with_policy(replace(given, kv_policy="h2o"), Checkpoint(folder))[1] is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"--kv-calibration {tmp_path / 'it'} is not used: --kv-policy h2o" in record.getMessage()


def test_lanes_that_are_chosen_for_the_servers_policy_are_not_those_of_others(
    options: EngineOptions, folder: Path
) -> None:
    def lanes(asked: EngineOptions) -> dict[str, str]:
        chosen, calibration = with_policy(asked, Checkpoint(folder))
        drivers = drivers_of(offered_policies(chosen.kv_policy, calibration), asked, chosen, 2, calibration)
        return {name: driver.lanes for name, driver in drivers.items()}

    left_open = lanes(options)
    assert left_open["scissorhands"] == "global"
    assert left_open["streaming"] == left_open["keydiff"] == "uniform"
    assert set(lanes(replace(options, kv_lanes="layer")).values()) == {"layer"}


def test_auto_is_scissorhands_where_it_is_not(
    options: EngineOptions, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        found, calibration = with_policy(options, Checkpoint(folder))
    assert (found.kv_policy, found.kv_lanes, calibration) == ("scissorhands", "global", None)
    assert f"`scissorserve calibrate {folder}` makes one" in caplog.text
    assert with_policy(replace(options, kv_lanes="layer"), Checkpoint(folder))[0].kv_lanes == "layer"
    assert assemble(options).scheduler.config.default_policy == "scissorhands"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--kv-policy", "calibrated"], "--kv-policy calibrated"),
        (["--kv-lanes", "profile"], "--kv-lanes profile"),
        (["--kv-policy", "h2o", "--kv-lanes", "profile"], "--kv-lanes profile"),
    ],
)
def test_what_needs_a_calibration_says_how_to_make_one(
    flags: list[str], named: str, options: EngineOptions, folder: Path
) -> None:
    parsed = parse(flags, {})
    chosen = replace(options, kv_policy=parsed.kv_policy, kv_lanes=parsed.kv_lanes)
    with pytest.raises(
        LaunchError, match=f"^{named} needs a calibration of this model.*`scissorserve calibrate "
    ) as no:
        assemble(chosen)
    assert "\n" not in str(no.value)


def test_a_file_of_another_model_stops_the_server_with_a_sentence(options: EngineOptions, tmp_path: Path) -> None:
    other = Checkpoint(model_in(tmp_path / "other", num_hidden_layers=1))
    a_calibration(other, tmp_path / "it")
    for policy in ("auto", "calibrated"):
        with pytest.raises(ModelError, match="was made for another model"):
            assemble(replace(options, kv_policy=policy, kv_calibration=tmp_path / "it"))


@pytest.mark.parametrize("policy", names("paged_kv.policies"))
def test_requests_may_name_calibrated_only_where_rows_carry_its_scores(
    policy: str, options: EngineOptions, folder: Path, tmp_path: Path
) -> None:
    calibration = a_calibration(Checkpoint(folder), calibration_path(Checkpoint(folder).fingerprint(), tmp_path))
    assert ("calibrated" in offered_policies(policy, calibration)) == (policy == "calibrated")


def test_a_request_for_calibrated_elsewhere_is_refused(options: EngineOptions) -> None:
    scheduler = assemble(replace(options, kv_policy="streaming")).scheduler
    request = GenerationRequest("it", (1, 2, 3), SamplingParams(max_tokens=1), kv_policy="calibrated")
    with pytest.raises(RequestRejected, match="'calibrated' is not offered here; choose one of: full"):
        checked_budget(request, scheduler.config, scheduler.memory)
