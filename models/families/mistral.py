"""Mistral: Llama's shape; versions with a sliding window are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.causal_lm import CausalLM
from models.config import refuse_sliding_window
from models.families import llama
from models.weights import WeightReader


def build(config: Mapping[str, Any], weights: WeightReader) -> CausalLM:
    """The model that `config` (a config.json) describes. Raises ModelError."""
    refuse_sliding_window(config)
    return llama.build(config, weights)
