"""The decoder of the Llama kin: RMS norm, rotary positions, grouped-query attention, gated SiLU feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from models.causal_lm import Attend, CausalLM
from models.config import ModelConfig
from models.layers import Linear, Rotation, WeightReader, split_heads


@dataclass(frozen=True, slots=True)
class GatedLayer:
    """Weights of one layer. `query_norm`, `key_norm` [head_dim]: RMS norms per head before RoPE (Qwen3), or None."""

    input_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    feed_forward_norm: Tensor
    gate_up: Linear
    down: Linear

    @staticmethod
    def read(weights: WeightReader) -> GatedLayer:
        """From the names that Hugging Face gives to a layer of this kind."""
        attention = weights.under("self_attn.")
        normed = attention.has("q_norm.weight")
        return GatedLayer(
            input_norm=weights.tensor("input_layernorm.weight"),
            qkv=attention.linear("q_proj", "k_proj", "v_proj"),
            query_norm=attention.tensor("q_norm.weight") if normed else None,
            key_norm=attention.tensor("k_norm.weight") if normed else None,
            output=attention.linear("o_proj"),
            feed_forward_norm=weights.tensor("post_attention_layernorm.weight"),
            gate_up=weights.linear("mlp.gate_proj", "mlp.up_proj"),
            down=weights.linear("mlp.down_proj"),
        )


class GatedDecoder(CausalLM):
    """Llama, Mistral, Qwen2 and Qwen3 differ in what their layers hold: biases, head norms, tied heads."""

    def __init__(
        self, config: ModelConfig, embedding: Tensor, layers: Sequence[GatedLayer], norm: Tensor, head: Linear
    ) -> None:
        assert config.rope is not None
        self.config = config
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._inverse_frequencies = config.rope.inverse_frequencies(config.head_dim).to(embedding.device)

    @staticmethod
    def read(config: ModelConfig, weights: WeightReader) -> GatedDecoder:
        """Read all weights; an output head that the checkpoint lacks is the embedding. Raises ModelError."""
        embedding = weights.tensor("model.embed_tokens.weight")
        layers = [
            GatedLayer.read(weights.under(f"model.layers.{i}."))
            for i in tqdm(range(config.num_layers), desc="Loading layers", disable=None, leave=False)
        ]
        head = weights.linear("lm_head") if weights.has("lm_head.weight") else Linear(embedding)
        return GatedDecoder(config, embedding, layers, weights.tensor("model.norm.weight"), head)

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """See `CausalLM.hidden`."""
        rotate = Rotation.at(positions, self._inverse_frequencies)
        residual = functional.embedding(tokens, self._embedding)
        for number, layer in enumerate(self._layers):
            residual = residual + self._attention(
                number, layer, self._normed(residual, layer.input_norm), rotate, attend
            )
            gate, up = layer.gate_up(self._normed(residual, layer.feed_forward_norm)).chunk(2, dim=-1)
            residual = residual + layer.down(functional.silu(gate) * up)
        return self._normed(residual, self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `CausalLM.logits`."""
        return self._head(hidden).float()

    def _attention(self, number: int, layer: GatedLayer, x: Tensor, rotate: Rotation, attend: Attend) -> Tensor:
        config = self.config
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        queries, keys, values = split_heads(layer.qkv(x), heads, config.head_dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = self._normed(queries, layer.query_norm), self._normed(keys, layer.key_norm)
        attended = attend(number, rotate(queries), rotate(keys), values)
        return layer.output(attended.to(x.dtype).flatten(1))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.config.norm_eps)
