"""Qwen3: Qwen2's shape with an RMS norm on each head of Q and K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.causal_lm import CausalLM
from models.families import qwen2
from models.weights import WeightReader

_HEAD_DIM_IF_UNSAID = 128


def build(config: Mapping[str, Any], weights: WeightReader) -> CausalLM:
    """The model that `config` (a config.json) describes. Raises ModelError."""
    return qwen2.build({"head_dim": _HEAD_DIM_IF_UNSAID, **config}, weights)
