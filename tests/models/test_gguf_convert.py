"""GGUF files become folders that transformers reads to the same logits, whatever happens on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from models.checkpoint import Checkpoint
from models.errors import ModelError
from models.gguf_convert import converted_folder
from models.tokenizer import Tokenizer

VOCABULARY = 276
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

WriteGGUF = Callable[..., Path]


def _ignore(line: str) -> None:
    del line


def _random(model_class: type[PreTrainedModel], config: Any) -> PreTrainedModel:
    """A model whose every weight, norms and biases too, is its own."""
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    return model


def _llama(**changes: Any) -> PreTrainedModel:
    return _random(LlamaForCausalLM, LlamaConfig(**(SHAPE | changes)))


def _logits(model: PreTrainedModel) -> torch.Tensor:
    ids = torch.arange(3, 3 + 100)[None] % VOCABULARY
    with torch.no_grad():
        return model(ids).logits


def _reloaded(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: _llama(), id="llama"),
        pytest.param(lambda: _llama(tie_word_embeddings=True, head_dim=16), id="llama-tied-wide-heads"),
        pytest.param(lambda: _random(Qwen2ForCausalLM, Qwen2Config(**SHAPE)), id="qwen2-biases"),
        pytest.param(lambda: _random(Qwen3ForCausalLM, Qwen3Config(**SHAPE)), id="qwen3-head-norms"),
    ],
)
def test_the_folder_gives_the_same_logits(
    model: Callable[[], PreTrainedModel], write_gguf: WriteGGUF, tmp_path: Path
) -> None:
    original = model()
    folder = converted_folder(write_gguf(original), tmp_path / "cache", _ignore)
    reloaded = _reloaded(folder)
    assert type(reloaded) is type(original)
    assert torch.equal(_logits(reloaded), _logits(original))


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F16, GGMLQuantizationType.BF16])
def test_half_precision_is_kept(kind: GGMLQuantizationType, write_gguf: WriteGGUF, tmp_path: Path) -> None:
    original = _llama()
    dtype = {GGMLQuantizationType.F16: torch.float16, GGMLQuantizationType.BF16: torch.bfloat16}[kind]
    checkpoint = Checkpoint(converted_folder(write_gguf(original, stored_as=kind), tmp_path / "cache", _ignore))
    assert checkpoint.config["torch_dtype"] == str(dtype).removeprefix("torch.")
    for name, weight in original.state_dict().items():
        expected = weight.to(dtype) if weight.ndim == 2 else weight
        assert torch.equal(checkpoint.tensor(name), expected), name


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1])
def test_quantised_weights_are_expanded_to_float32(
    kind: GGMLQuantizationType, write_gguf: WriteGGUF, tmp_path: Path
) -> None:
    original = _llama()
    checkpoint = Checkpoint(converted_folder(write_gguf(original, stored_as=kind), tmp_path / "cache", _ignore))
    for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight"):
        weight = original.state_dict()[name].numpy()
        expected = gguf.dequantize(gguf.quantize(weight, kind), kind)
        assert np.array_equal(checkpoint.tensor(name).numpy(), expected), name


def test_llama3_rotary_factors_are_recognised(write_gguf: WriteGGUF, tmp_path: Path) -> None:
    original = _llama(rope_parameters=LLAMA3, head_dim=16)
    plain = _llama(rope_parameters={"rope_type": "default", "rope_theta": LLAMA3["rope_theta"]}, head_dim=16)
    factors = plain.model.rotary_emb.inv_freq / original.model.rotary_emb.inv_freq
    path = write_gguf(original, extra=lambda writer: writer.add_tensor("rope_freqs.weight", factors.numpy()))
    folder = converted_folder(path, tmp_path / "cache", _ignore)
    torch.testing.assert_close(_logits(_reloaded(folder)), _logits(original))
    assert not torch.allclose(_logits(plain), _logits(original))


def test_unknown_rotary_factors_are_refused(write_gguf: WriteGGUF, tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 4, dtype=np.float32)
    path = write_gguf(_llama(), extra=lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    with pytest.raises(ModelError, match="rotary factors"):
        converted_folder(path, tmp_path / "cache", _ignore)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rotary_scaling_is_carried_over(kind: str, write_gguf: WriteGGUF, tmp_path: Path) -> None:
    parameters = {"rope_type": kind, "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32}
    original = _llama(rope_parameters=parameters)

    def extra(writer: GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)

    folder = converted_folder(write_gguf(original, extra=extra), tmp_path / "cache", _ignore)
    assert torch.equal(_logits(_reloaded(folder)), _logits(original))


def test_the_tokenizer_comes_along(write_gguf: WriteGGUF, tmp_path: Path) -> None:
    folder = converted_folder(write_gguf(_llama()), tmp_path / "cache", _ignore)
    tokenizer = Tokenizer.from_folder(folder)
    assert [tokenizer.token_string(i) for i in tokenizer.encode("hello world 12<think>")] == [
        "hello", "Ġworld", "Ġ", "1", "2", "<think>",
    ]  # fmt: skip
    assert tokenizer.encode("hello<|im_end|>") == AutoTokenizer.from_pretrained(folder).encode("hello<|im_end|>")
    assert tokenizer.vocab_size == VOCABULARY - 6, "unused entries at the end are no tokens"
    assert tokenizer.special_ids == {0, 1, 2}
    assert Checkpoint(folder).eos_token_ids == (2, 0)


def _architecture(name: str) -> Callable[[GGUFWriter], None]:
    return lambda writer: writer.kv_data[0].__setitem__("general.architecture", _text(name))


def _text(value: str) -> Any:
    return gguf.gguf_writer.GGUFValue(value, gguf.GGUFValueType.STRING)


def _key(name: str, value: str) -> Callable[[GGUFWriter], None]:
    return lambda writer: writer.kv_data[0].__setitem__(name, _text(value))


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (_architecture("mamba"), "holds a 'mamba' model; GGUF files can hold: llama, qwen2, qwen3"),
        (lambda writer: writer.add_expert_count(8), "mixture of experts"),
        (lambda writer: writer.add_uint16("split.count", 3), "one of 3 parts"),
        (lambda writer: writer.add_rope_dimension_count(4), "a part of the head"),
        (lambda writer: writer.add_tensor("blk.0.attn_sinks.weight", np.zeros(4, np.float32)), "blk.0.attn_sinks"),
        (_key("llama.rope.scaling.type", "longrope"), "'longrope' is not supported"),
        (_key("tokenizer.ggml.pre", "martian"), "pre-tokenizer 'martian' is not known"),
        (_key("tokenizer.ggml.model", "rwkv"), "kind 'rwkv' is not supported"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(
    extra: Callable[[GGUFWriter], None], sentence: str, write_gguf: WriteGGUF, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(ModelError, match=sentence):
        converted_folder(write_gguf(_llama(), extra=extra), cache, _ignore)
    assert not [entry for entry in cache.iterdir() if not entry.name.endswith(".lock")]


@pytest.mark.parametrize("kept", [0, 3, 100, 2000, 0.9])
def test_a_truncated_file_is_refused(kept: float, write_gguf: WriteGGUF, tmp_path: Path) -> None:
    path = write_gguf(_llama())
    size = path.stat().st_size
    os.truncate(path, int(kept * size) if isinstance(kept, float) else kept)
    with pytest.raises(ModelError, match="not a readable GGUF file"):
        converted_folder(path, tmp_path / "cache", _ignore)


def test_a_full_disk_is_noticed_before_writing(
    write_gguf: WriteGGUF, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("usage", (), {"free": 1000})
    monkeypatch.setattr("models.gguf_convert.shutil.disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match="SCISSORSERVE_CACHE"):
        converted_folder(write_gguf(_llama()), tmp_path / "cache", _ignore)


def test_a_cache_that_cannot_be_written_is_told(write_gguf: WriteGGUF, tmp_path: Path) -> None:
    path = write_gguf(_llama())
    with pytest.raises(ModelError, match="SCISSORSERVE_CACHE can name another folder"):
        converted_folder(path, path / "below-a-file", _ignore)


def test_a_file_is_converted_once_and_again_when_it_changes(write_gguf: WriteGGUF, tmp_path: Path) -> None:
    cache, lines = tmp_path / "cache", []
    path = write_gguf(_llama())
    first = converted_folder(path, cache, lines.append)
    os.utime(path, (1, 1))
    assert converted_folder(path, cache, lines.append) == first
    assert len(lines) == 1
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\x01\x02\x03\x04")
    assert converted_folder(path, cache, lines.append) != first
    assert len(lines) == 2


def test_two_at_once_convert_once(write_gguf: WriteGGUF, tmp_path: Path) -> None:
    path, lines = write_gguf(_llama()), []
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(converted_folder, path, tmp_path / "cache", lines.append) for _ in range(4)]
        assert len({job.result() for job in jobs}) == 1
    assert len(lines) == 1


KILLED = """
    import os, signal, sys
    from pathlib import Path
    import models.gguf_convert as convert

    write = convert.write_safetensors

    def die_after_the_first_tensor(path, tensors, written):
        write(path, tensors, lambda count: os.kill(os.getpid(), signal.SIGKILL))

    convert.write_safetensors = die_after_the_first_tensor
    convert.converted_folder(Path(sys.argv[1]), Path(sys.argv[2]), print)
"""


def test_a_killed_conversion_leaves_nothing_broken(write_gguf: WriteGGUF, tmp_path: Path) -> None:
    path, cache = write_gguf(_llama()), tmp_path / "cache"
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), path, cache], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert [entry for entry in cache.iterdir() if ".partial-" in entry.name], "it was killed in the middle"
    folder = converted_folder(path, cache, _ignore)
    assert torch.equal(_logits(_reloaded(folder)), _logits(_llama()))
    assert not [entry for entry in cache.iterdir() if ".partial-" in entry.name]


def test_configuration_files_are_plain_json(write_gguf: WriteGGUF, tmp_path: Path) -> None:
    folder = converted_folder(write_gguf(_llama()), tmp_path / "cache", _ignore)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert {key: config[key] for key in SHAPE} == SHAPE
    assert {entry.name for entry in folder.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
