"""Lazy reading of safetensors folders, and plain sentences for broken ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from models.checkpoint import Checkpoint
from models.errors import ModelError

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b": torch.ones(3, dtype=torch.bfloat16),
    "c": torch.zeros(1, dtype=torch.float16),
}


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


@pytest.fixture
def single(tmp_path: Path) -> Path:
    _write(tmp_path / "config.json", {"model_type": "llama", "eos_token_id": 7})
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    _write(tmp_path / "config.json", {"model_type": "llama"})
    files = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    for file in set(files.values()):
        save_file({name: TENSORS[name] for name in TENSORS if files[name] == file}, tmp_path / file)
    _write(tmp_path / "model.safetensors.index.json", {"weight_map": files})
    return tmp_path


@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_tensors_come_back_as_they_were_stored(layout: str, request: pytest.FixtureRequest) -> None:
    checkpoint = Checkpoint(request.getfixturevalue(layout))
    assert checkpoint.names() == TENSORS.keys()
    for name, expected in TENSORS.items():
        assert checkpoint.tensor(name).dtype == expected.dtype
        assert torch.equal(checkpoint.tensor(name), expected)


def test_shards_are_opened_only_when_needed(sharded: Path) -> None:
    (sharded / "model-2.safetensors").unlink()
    checkpoint = Checkpoint(sharded)
    assert torch.equal(checkpoint.tensor("a"), TENSORS["a"])
    with pytest.raises(ModelError, match=r"model-2\.safetensors is missing"):
        checkpoint.tensor("c")


def test_a_missing_tensor_is_named(single: Path) -> None:
    with pytest.raises(ModelError, match=r"no tensor 'lm_head\.weight'"):
        Checkpoint(single).tensor("lm_head.weight")


def test_an_index_that_points_to_the_wrong_shard_is_noticed(sharded: Path) -> None:
    _write(sharded / "model.safetensors.index.json", {"weight_map": {"c": "model-1.safetensors"}})
    with pytest.raises(ModelError, match=r"model-1\.safetensors does not hold 'c'"):
        Checkpoint(sharded).tensor("c")


@pytest.mark.parametrize("weight_map", [None, [], {"a": "../../etc/passwd"}, {"a": "/etc/passwd"}, {"a": 3}, {"a": ""}])
def test_an_index_may_only_name_files_of_its_folder(sharded: Path, weight_map: object) -> None:
    _write(sharded / "model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(ModelError, match="no weight_map"):
        Checkpoint(sharded).names()


@pytest.mark.parametrize("kept", [0, 5, 60, -4])
def test_a_truncated_file_is_damaged(single: Path, kept: int) -> None:
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged"):
        Checkpoint(single).names()


@pytest.mark.parametrize(
    ("content", "sentence"), [(None, "is missing"), ("{", "not valid JSON"), ("[]", "not hold a JSON object")]
)
def test_a_bad_config_is_told(tmp_path: Path, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=sentence):
        Checkpoint(tmp_path)


def test_a_folder_without_weights_is_told(tmp_path: Path) -> None:
    _write(tmp_path / "config.json", {})
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        Checkpoint(tmp_path).names()


@pytest.mark.parametrize(
    ("generation", "expected"),
    [(None, (7,)), ({}, (7,)), ({"eos_token_id": 3}, (3,)), ({"eos_token_id": [3, 4]}, (3, 4))],
)
def test_end_tokens_come_from_the_generation_config_first(
    single: Path, generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    if generation is not None:
        _write(single / "generation_config.json", generation)
    assert Checkpoint(single).eos_token_ids == expected
