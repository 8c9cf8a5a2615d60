"""GGUF tensors under their Hugging Face names, in their Hugging Face row order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from models.errors import ModelError
from models.gguf_file import GGUFFile
from models.safetensors_writer import LazyTensor

_MODEL_NAMES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IN_CONFIG = frozenset({"rope_freqs.weight"})
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_SAFETENSORS_DTYPES = {GGMLQuantizationType.F16: "F16", GGMLQuantizationType.BF16: "BF16"}


def convert_tensors(file: GGUFFile, config: Mapping[str, Any]) -> Iterator[LazyTensor]:
    """Every weight of the model, to be read when it is written. Raises ModelError for a tensor of unknown use."""
    rotated = {
        "self_attn.q_proj": int(config["num_attention_heads"]),
        "self_attn.k_proj": int(config["num_key_value_heads"]),
    }
    for name in file.tensors:
        if name in _IN_CONFIG:
            continue
        hf_name = _hf_name(file, name)
        heads = next((heads for part, heads in rotated.items() if part in hf_name), None)
        interleaved = heads if file.architecture == "llama" else None
        yield LazyTensor(
            name=hf_name,
            dtype=_SAFETENSORS_DTYPES.get(file.stored_type(name), "F32"),
            shape=file.shape(name),
            load=partial(_load, file, name, interleaved),
        )


def _hf_name(file: GGUFFile, name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _MODEL_NAMES:
        return f"{_MODEL_NAMES[stem]}.{kind}"
    if (match := _LAYER.fullmatch(name)) and match[2] in _LAYER_NAMES:
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
    raise ModelError(f"{file.path}: the tensor {name!r} is not part of a plain {file.architecture} model")


def _load(file: GGUFFile, name: str, interleaved_heads: int | None) -> np.ndarray[Any, Any]:
    values = file.read(name)
    return values if interleaved_heads is None else _split_halves(values, interleaved_heads)


def _split_halves(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Undo llama.cpp's row order: it keeps the two rows of a rotary pair together, Hugging Face half a head apart."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
