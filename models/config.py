"""A decoder's dimensions and options, read from a config.json of Hugging Face's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from models.errors import ModelError

_WINDOW_IF_UNSAID = 4096  # what Hugging Face takes where a config.json has no "sliding_window" at all


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base frequency, and how it is stretched beyond the trained context.

    `kind` "default", "linear" (all frequencies divided by `factor`), or "llama3" (long wavelengths divided by `factor`,
    short ones kept, the band between them blended; Llama 3.1's rule).
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Radians per position, float32 [head_dim / 2]."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        frequencies = 1.0 / self.theta**exponents
        if self.kind == "linear":
            return frequencies / self.factor
        if self.kind == "llama3":
            turns = self.original_context * frequencies / (2 * math.pi)
            blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
            blend = blend.clamp(0.0, 1.0)
            return blend * frequencies + (1.0 - blend) * frequencies / self.factor
        return frequencies

    @staticmethod
    def read(config: Mapping[str, Any]) -> RopeConfig:
        """From `rope_parameters`, or from the older pair `rope_theta` and `rope_scaling`. Raises ModelError."""
        scaling: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
        theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind not in ("default", "linear", "llama3"):
            raise ModelError(f"RoPE scaling of type {kind!r} is not supported (default, linear and llama3 are)")
        if (config.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1.0) != 1.0:
            raise ModelError("partial rotary embeddings are not supported")
        return RopeConfig(
            theta=theta,
            kind=kind,
            factor=float(scaling.get("factor", 1.0)),
            low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
            high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
            original_context=int(
                scaling.get("original_max_position_embeddings") or config.get("max_position_embeddings") or 8192
            ),
        )


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the runner, the pool and the layers must know. `rope` None: positions are learned embeddings."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    rope: RopeConfig | None

    @property
    def num_lanes(self) -> int:
        """Lanes of a sequence."""
        return self.num_layers * self.num_kv_heads

    @staticmethod
    def read(config: Mapping[str, Any], *, rope: RopeConfig | None, norm_eps: float) -> ModelConfig:
        """The fields that all families share. Raises ModelError for one that is missing or impossible."""
        hidden_size = _count(config, "hidden_size")
        heads = _count(config, "num_attention_heads")
        kv_heads = _count(config, "num_key_value_heads", heads)
        if heads % kv_heads:
            raise ModelError(f"config.json: {heads} attention heads cannot share {kv_heads} KV heads evenly")
        return ModelConfig(
            vocab_size=_count(config, "vocab_size"),
            hidden_size=hidden_size,
            num_layers=_count(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=_count(config, "head_dim", hidden_size // heads),
            max_position=_count(config, "max_position_embeddings"),
            norm_eps=norm_eps,
            rope=rope,
        )


def refuse_sliding_window(config: Mapping[str, Any]) -> None:
    """Raise ModelError if the model wants a sliding attention window, which this server does not compute."""
    window = config.get("sliding_window", _WINDOW_IF_UNSAID)
    if window is not None:
        raise ModelError(
            f"the model attends in a sliding window of {window} tokens, which is not supported; use a variant "
            "without one"
        )


def refuse_activation(config: Mapping[str, Any], key: str, supported: Sequence[str]) -> None:
    """Raise ModelError unless the activation that `config` names under `key` is one of `supported`, or not said."""
    activation = config.get(key, supported[0])
    if activation not in supported:
        raise ModelError(f"the activation {activation!r} is not supported for this model type ({supported[0]} is)")


def _count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise ModelError(f"config.json has no {key!r}")
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {key!r} must be a positive whole number, but it is {value!r}")
    return value
