"""RoPE: frequencies as transformers has them, from configs old and new, and what rotating must preserve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from models.config import RopeConfig
from paged_kv.rotary import Rotary

HEAD_DIM = 32
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA3_WITHOUT_CONTEXT = {key: value for key, value in LLAMA3.items() if "original" not in key}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "llama3-narrow-band": LLAMA3 | {"low_freq_factor": 1.5, "high_freq_factor": 2.0, "factor": 32.0},
}


def _config_json(folder: Path, **content: Any) -> dict[str, Any]:
    """A Llama's config.json with `content` instead of the entries about RoPE that transformers writes."""
    LlamaConfig(hidden_size=HEAD_DIM, num_attention_heads=1, max_position_embeddings=512).save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    path.write_text(json.dumps(config | content))
    return config | content


def _theirs(folder: Path) -> torch.Tensor:
    return LlamaRotaryEmbedding(AutoConfig.from_pretrained(folder)).inv_freq


def _old_name(scaling: dict[str, Any]) -> dict[str, Any]:
    return {"type" if key == "rope_type" else key: value for key, value in scaling.items()}


STYLES = {
    "parameters": lambda theta, scaling: {"rope_parameters": scaling | {"rope_theta": theta}},
    "pair": lambda theta, scaling: {"rope_theta": theta, "rope_scaling": scaling},
    "pair-old-name": lambda theta, scaling: {"rope_theta": theta, "rope_scaling": _old_name(scaling)},
    "theta-outside": lambda theta, scaling: {"rope_theta": theta, "rope_parameters": scaling},
}


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_frequencies_are_those_of_transformers(scaling: dict[str, Any], style: Any, tmp_path: Path) -> None:
    config = _config_json(tmp_path, **style(500000.0, scaling))
    ours = RopeConfig.read(config).inverse_frequencies(HEAD_DIM)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, _theirs(tmp_path), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"rope_theta": 1234.5}, id="theta-only"),
        pytest.param({"rope_theta": 1234.5, "rope_scaling": None}, id="null-scaling"),
        pytest.param({"rope_scaling": LLAMA3_WITHOUT_CONTEXT}, id="llama3-without-its-first-context"),
    ],
)
def test_what_a_config_leaves_out_is_what_transformers_takes(content: dict[str, Any], tmp_path: Path) -> None:
    ours = RopeConfig.read(_config_json(tmp_path, **content)).inverse_frequencies(HEAD_DIM)
    torch.testing.assert_close(ours, _theirs(tmp_path), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_is_that_of_transformers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    positions = torch.tensor([0, 1, 2, 77, 1000, 32000])
    queries, keys = (torch.randn(6, heads, HEAD_DIM).to(dtype) for heads in (4, 2))
    rope = LlamaRotaryEmbedding(LlamaConfig(hidden_size=HEAD_DIM, num_attention_heads=1))
    cos, sin = rope(torch.zeros(1), positions[None])
    expected = apply_rotary_pos_emb(queries.float(), keys.float(), cos[0], sin[0], unsqueeze_dim=1)
    rotate = Rotary.at(positions, rope.inv_freq)
    for ours, theirs in zip((rotate(queries), rotate(keys)), expected, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs.to(dtype), rtol=1e-5, atol=1e-5)


@given(first=st.integers(0, 4000), second=st.integers(0, 4000), shift=st.integers(0, 4000), seed=st.integers(0, 99))
def test_products_depend_on_distance_alone(first: int, second: int, shift: int, seed: int) -> None:
    query, key = torch.randn(2, 1, 1, HEAD_DIM, generator=torch.Generator().manual_seed(seed))
    frequencies = RopeConfig(theta=10000.0).inverse_frequencies(HEAD_DIM)

    def product(query_at: int, key_at: int) -> torch.Tensor:
        turned = (Rotary.at(torch.tensor([at]), frequencies)(x) for at, x in ((query_at, query), (key_at, key)))
        return torch.mul(*turned).sum()

    torch.testing.assert_close(product(first, second), product(first + shift, second + shift), rtol=0, atol=2e-2)
    torch.testing.assert_close(product(first, first), (query * key).sum(), rtol=0, atol=1e-4)
