"""`scissorserve calibrate --search`: what wins on passages that were held out is kept, and nothing else."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import models.calibration_file
from models.calibration_file import read_calibration
from models.checkpoint import Checkpoint
from models.examiner import Examiner, Marks
from paged_kv.calibration import Calibration
from paged_kv.lanes import LaneProfile
from server.calibrate import main as calibrate
from tests.models.tiny import prompt
from tests.server.test_calibrate import model_in

PASSAGES = 5  # the last of them is held out
SEARCHED = 2  # the place of the share of 0.2 in a profile


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose passages are 512 tokens."""
    return model_in(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many passages of text."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(f"{number}." for number in prompt(2000, vocabulary=999))[: PASSAGES * 512], "utf-8")
    return path


@pytest.fixture(scope="module")
def measured(folder: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    """What comes out without a search."""
    path = tmp_path_factory.mktemp("measured") / "it"
    assert calibrate([str(folder), "--text", str(text), "--out", str(path)], {}) == 0
    return read_calibration(path, Checkpoint(folder).fingerprint())


@pytest.fixture
def command(folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A short search."""
    monkeypatch.setattr(models.calibration_file, "_SHIPPED", tmp_path / "shipped")
    out = ["--out", str(tmp_path / "it"), "--search", "--search-generations", "6"]
    return [str(folder), "--text", str(text), *out]


def result(folder: Path, tmp_path: Path) -> tuple[Calibration, dict[str, object]]:
    """The calibration that was written, and what its header says that it was made from."""
    with safe_open(tmp_path / "it", "pt") as file:
        header = json.loads(file.metadata()["calibration"])
    return read_calibration(tmp_path / "it", Checkpoint(folder).fingerprint()), header


class LastLaneMatters:
    """Marks that are better the more the last lane keeps; those of held-out passages the worse, if `not_there`."""

    def __init__(self, *, not_there: bool) -> None:
        self.asked: list[set[int]] = []
        self._sign = -1.0 if not_there else 1.0

    def marks(self, examiner: Examiner, numbers: Sequence[int], profile: LaneProfile | None) -> Marks:
        """In place of `Examiner.marks`."""
        self.asked.append(set(numbers))
        lost = 0.0 if profile is None else 1.0 - float(profile.rows[SEARCHED, -1])
        return Marks(self._sign * lost if PASSAGES - 1 in numbers else lost, 1.0 - lost, lost)


Searched = tuple[Calibration, dict[str, object], LastLaneMatters]


@pytest.fixture
def searched(
    command: list[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Searched]:
    """Searches under marks of the test's own: what was written, what it says of itself, and who gave the marks."""

    def search(*, not_there: bool) -> Searched:
        judge = LastLaneMatters(not_there=not_there)
        monkeypatch.setattr(Examiner, "marks", lambda *given: judge.marks(*given))
        assert calibrate(command, {}) == 0
        return *result(folder, tmp_path), judge

    return search


def test_what_wins_on_held_out_passages_is_kept(
    searched: Callable[..., Searched], measured: Calibration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibration, header, judge = searched(not_there=False)
    assert calibration.profile.rows[SEARCHED, -1] > measured.profile.rows[SEARCHED, -1] + 0.05
    torch.testing.assert_close(calibration.profile.shares, measured.profile.shares)
    assert same_but_for_what_was_searched(calibration, measured)
    assert header["search"] == {"policy": "scissorhands", "share": 0.2, "generations": 6, "minutes": None}
    assert "the profile that was searched is kept" in capsys.readouterr().out
    assert {PASSAGES - 1} in judge.asked
    assert all(asked == {PASSAGES - 1} or max(asked) < PASSAGES - 1 for asked in judge.asked)
    assert [file.name for file in tmp_path.iterdir()] == ["it"]


def same_but_for_what_was_searched(one: Calibration, other: Calibration) -> bool:
    """Whether scorers and all other shares are alike to the bit."""

    def rest(calibration: Calibration) -> tuple[Tensor, ...]:
        others = [place for place in range(6) if place != SEARCHED]
        return calibration.scorer.weights, calibration.scorer.bias, calibration.profile.rows[others]

    return all(torch.equal(a, b) for a, b in zip(rest(one), rest(other), strict=True))


def test_what_loses_there_is_not(
    searched: Callable[..., Searched], measured: Calibration, capsys: pytest.CaptureFixture[str]
) -> None:
    calibration, header, _ = searched(not_there=True)
    assert torch.equal(calibration.profile.rows, measured.profile.rows)
    assert "search" not in header
    (verdict,) = [line for line in capsys.readouterr().out.splitlines() if "held out" in line]
    assert "the lane profile stays as it was measured" in verdict


def test_interrupted_it_judges_what_it_has(
    command: list[str],
    folder: Path,
    tmp_path: Path,
    measured: Calibration,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    judge = LastLaneMatters(not_there=False)
    calls = itertools.count()

    def marks_or_stop(examiner: Examiner, numbers: Sequence[int], profile: LaneProfile | None) -> Marks:
        if next(calls) == 40:
            signal.raise_signal(signal.SIGINT)
        return judge.marks(examiner, numbers, profile)

    monkeypatch.setattr(Examiner, "marks", marks_or_stop)
    assert calibrate([*command[:-1], "100000"], {}) == 0
    assert "Search ended early" in capsys.readouterr().out
    calibration, _ = result(folder, tmp_path)
    assert calibration.profile.rows[SEARCHED, -1] > measured.profile.rows[SEARCHED, -1]


def test_with_real_marks_the_file_says_what_was_printed(
    command: list[str], folder: Path, tmp_path: Path, measured: Calibration, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate([*command[:-1], "2", "--search-policy", "h2o", "--search-share", "0.35"], {}) == 0
    wins = "the profile that was searched is kept" in capsys.readouterr().out
    calibration, header = result(folder, tmp_path)
    assert wins == ("search" in header) == (not torch.equal(calibration.profile.rows, measured.profile.rows))


def test_time_that_is_over_ends_it(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = LastLaneMatters(not_there=False)
    monkeypatch.setattr(Examiner, "marks", lambda *given: judge.marks(*given))
    seconds = iter(range(0, 10**6, 30))
    monkeypatch.setattr("server.profile_search.monotonic", lambda: next(seconds))
    assert calibrate([*command[:-1], "100000", "--search-minutes", "2"], {}) == 0
    assert len(judge.asked) < 100
    assert (tmp_path / "it").is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--passages", "1"], "--search needs at least 2 passages"),
        (["--search-policy", "calibrated"], "--search-policy calibrated follows no lane profile"),
        (["--search-policy", "full"], "--search-policy full follows no lane profile"),
        (["--search-policy", "scissorhands-paper"], "--search-policy scissorhands-paper follows no lane profile"),
        (["--search-policy", "h3o"], "--search-policy: unknown option 'h3o'; choose one of: calibrated"),
        (["--search-share", "0.3"], "invalid choice: 0.3"),
        (["--search-generations", "0"], "'0' is not a whole number of at least 1"),
        (["--search-minutes", "soon"], "'soon' is not a whole number"),
    ],
)
def test_mistakes_get_one_line_before_anything_is_measured(
    arguments: list[str], sentence: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: int | str | None = calibrate([*command, *arguments], {})
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line
    assert list(tmp_path.iterdir()) == []
