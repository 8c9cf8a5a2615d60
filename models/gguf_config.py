"""GGUF metadata to a Hugging Face `config.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from models.errors import ModelError
from models.gguf_file import GGUFFile

_CLASSES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

# The factors of Llama 3.1 to 3.3; a GGUF keeps only the table that they produce.
_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

_DTYPES = {GGMLQuantizationType.F16: "float16", GGMLQuantizationType.BF16: "bfloat16"}


def convert_config(file: GGUFFile) -> dict[str, Any]:
    """What the architecture's Hugging Face config class reads. Raises ModelError for what no config can say."""
    if file.architecture not in _CLASSES:
        supported = ", ".join(_CLASSES)
        raise ModelError(f"{file.path} holds a {file.architecture!r} model; GGUF files can hold: {supported}")
    if (parts := file.get("split.count", 1)) > 1:
        raise ModelError(f"{file.path} is one of {parts} parts; join them into one file with llama-gguf-split --merge")
    if file.hparam("expert_count", 0):
        raise ModelError(f"{file.path} holds a mixture of experts, which is not supported; use a dense model")
    heads = _per_model(file, "attention.head_count")
    head_dim = _head_dim(file, heads)
    config = {
        "architectures": [_CLASSES[file.architecture]],
        "model_type": file.architecture,
        "vocab_size": file.shape("token_embd.weight")[0],
        "hidden_size": file.require_hparam("embedding_length"),
        "intermediate_size": _per_model(file, "feed_forward_length"),
        "num_hidden_layers": file.require_hparam("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _per_model(file, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": file.require_hparam("context_length"),
        "rms_norm_eps": file.require_hparam("attention.layer_norm_rms_epsilon"),
        "rope_theta": file.hparam("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(file, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": _DTYPES.get(file.stored_type("token_embd.weight"), "float32"),
    }
    if file.architecture == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    return config


def _per_model(file: GGUFFile, name: str, default: int | None = None) -> int:
    value = file.hparam(name, default)
    if isinstance(value, list):
        raise ModelError(f"{file.path}: {name} differs from layer to layer, which is not supported")
    return int(value if value is not None else file.require_hparam(name))


def _head_dim(file: GGUFFile, heads: int) -> int:
    head_dim = int(file.hparam("attention.key_length", file.require_hparam("embedding_length") // heads))
    if file.hparam("attention.value_length", head_dim) != head_dim:
        raise ModelError(f"{file.path}: keys and values of different width are not supported")
    if file.hparam("rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{file.path}: rotary embeddings over a part of the head are not supported")
    return head_dim


def _rope_scaling(file: GGUFFile, head_dim: int) -> dict[str, Any] | None:
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file, head_dim)
    kind = file.hparam("rope.scaling.type", "none")
    factor = file.hparam("rope.scaling.factor", file.hparam("rope.scale_linear", 1.0))
    if kind == "yarn" and file.hparam("rope.scaling.attn_factor", 1.0) == 1.0:
        original = file.require_hparam("rope.scaling.original_context_length")
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    if kind not in ("none", "linear"):
        raise ModelError(f"{file.path}: rotary scaling of type {kind!r} is not supported")
    return {"rope_type": "linear", "factor": factor} if factor != 1.0 else None


def _llama3_scaling(file: GGUFFile, head_dim: int) -> dict[str, Any]:
    """The parameters behind a `rope_freqs` table: its largest entry is the factor, the rest is checked."""
    found = file.read("rope_freqs.weight").astype(np.float64)
    factor = float(found.max())
    theta = float(file.hparam("rope.freq_base", 10000.0))
    expected = _llama3_table(factor, theta, head_dim)
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-3):
        raise ModelError(f"{file.path}: its table of rotary factors is not one of Llama 3; it is not supported")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3_ROPE}


def _llama3_table(factor: float, theta: float, head_dim: int) -> np.ndarray[Any, Any]:
    low, high, original = _LLAMA3_ROPE.values()
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    blend = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    scaled: np.ndarray[Any, Any] = 1.0 / ((1.0 - blend) / factor + blend)
    return scaled
