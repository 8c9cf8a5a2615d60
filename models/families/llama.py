"""Llama 2 and 3, SmolLM2, and what shares their shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.causal_lm import CausalLM
from models.config import ModelConfig, RopeConfig, refuse_activation
from models.gated_decoder import GatedDecoder
from models.weights import WeightReader


def build(config: Mapping[str, Any], weights: WeightReader) -> CausalLM:
    """The model that `config` (a config.json) describes. Raises ModelError."""
    return GatedDecoder.read(read_config(config), weights)


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """Dimensions of a decoder of the Llama kin. Raises ModelError."""
    refuse_activation(config, "hidden_act", ("silu", "swish"))
    return ModelConfig.read(config, rope=RopeConfig.read(config), norm_eps=float(config.get("rms_norm_eps", 1e-6)))
