"""Qwen2 and Qwen2.5: Llama's shape with biases on Q, K and V."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.causal_lm import CausalLM
from models.config import refuse_sliding_window
from models.families import llama
from models.weights import WeightReader


def build(config: Mapping[str, Any], weights: WeightReader) -> CausalLM:
    """The model that `config` (a config.json) describes. Raises ModelError."""
    if config.get("use_sliding_window"):
        refuse_sliding_window(config)
    return llama.build(config, weights)
