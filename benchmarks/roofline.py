"""What a machine's memory and multipliers allow a model: limits that no engine can pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.machine import Machine

Format = Literal["float32", "int8"]
_BYTES: Mapping[Format, int] = {"float32": 4, "int8": 1}


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder's sizes, in numbers: weights of all layers and of the head, K and V of one token, query width."""

    layers: int
    layer_weights: int
    head_weights: int
    row: int
    query: int

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Shape:
        """From the `config.json` of a Llama-like model."""
        hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
        dim = config.get("head_dim") or hidden // heads
        query, row = heads * dim, 2 * config["num_key_value_heads"] * dim
        layer = hidden * (2 * query + row + 3 * config["intermediate_size"])
        return Shape(layers, layers * layer, hidden * config["vocab_size"], layers * row, layers * query)


def decode_limit(shape: Shape, machine: Machine, kind: Format, sequences: int, context: int) -> float:
    """Tokens per second if a step reads every weight once and `context` rows per sequence, all stored as `kind`.

    Scales are not counted. The machine computes while it reads, so the slower of the two decides.
    """
    weights = shape.layer_weights + shape.head_weights
    read = _BYTES[kind] * (weights + sequences * context * shape.row)
    operations = sequences * (2 * weights + 4 * context * shape.query)
    return sequences / max(read / machine.read, operations / _rate(machine, kind))


def prefill_limit(shape: Shape, machine: Machine, kind: Format, tokens: int) -> float:
    """Tokens per second of one prompt whose last token alone goes through the head."""
    attention = 4 * shape.query * tokens * (tokens + 1) // 2
    operations = 2 * (shape.layer_weights * tokens + shape.head_weights) + attention
    read = _BYTES[kind] * (shape.layer_weights + shape.head_weights)
    return tokens / max(read / machine.read, operations / _rate(machine, kind))


def _rate(machine: Machine, kind: Format) -> float:
    return machine.float32 if kind == "float32" else machine.int8
