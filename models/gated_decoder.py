"""The decoder of the Llama kin: RMS norm, rotary positions, grouped-query attention, gated SiLU feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from models.causal_lm import Attend, CausalLM
from models.config import ModelConfig
from models.linear import Linear, RmsNorm
from models.weights import WeightReader
from paged_kv.rotary import Rotary


@dataclass(frozen=True, slots=True)
class GatedLayer:
    """Weights of one layer. `query_norm`, `key_norm`: norms per head before RoPE (Qwen3), or None."""

    input_norm: RmsNorm
    qkv: Linear
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    output: Linear
    feed_forward_norm: RmsNorm
    gate_up: Linear
    down: Linear

    @staticmethod
    def read(weights: WeightReader, eps: float) -> GatedLayer:
        """From the names that Hugging Face gives to a layer of this kind."""
        attention = weights.under("self_attn.")
        normed = attention.has("q_norm.weight")
        return GatedLayer(
            input_norm=RmsNorm(weights.tensor("input_layernorm.weight"), eps),
            qkv=attention.linear("q_proj", "k_proj", "v_proj"),
            query_norm=RmsNorm(attention.tensor("q_norm.weight"), eps) if normed else None,
            key_norm=RmsNorm(attention.tensor("k_norm.weight"), eps) if normed else None,
            output=attention.linear("o_proj"),
            feed_forward_norm=RmsNorm(weights.tensor("post_attention_layernorm.weight"), eps),
            gate_up=weights.linear("mlp.gate_proj", "mlp.up_proj"),
            down=weights.linear("mlp.down_proj"),
        )


class GatedDecoder(CausalLM):
    """Llama, Mistral, Qwen2 and Qwen3 differ in what their layers hold: biases, head norms, tied heads."""

    def __init__(
        self, config: ModelConfig, embedding: Tensor, layers: Sequence[GatedLayer], norm: RmsNorm, head: Linear
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
            GatedLayer.read(weights.under(f"model.layers.{i}."), config.norm_eps)
            for i in tqdm(range(config.num_layers), desc="Loading layers", disable=None, leave=False)
        ]
        norm = RmsNorm(weights.tensor("model.norm.weight"), config.norm_eps)
        return GatedDecoder(config, embedding, layers, norm, weights.head("lm_head", "model.embed_tokens", embedding))

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """See `CausalLM.hidden`."""
        rotary = Rotary.at(positions, self._inverse_frequencies)
        residual = functional.embedding(tokens, self._embedding)
        for number, layer in enumerate(self._layers):
            fused = self._fused(layer, residual)
            layer.output(attend(number, fused, rotary).to(residual.dtype), add_to=residual)
            layer.down(layer.gate_up(residual, norm=layer.feed_forward_norm), gated=True, add_to=residual)
        return self._norm(residual)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `CausalLM.logits`."""
        return self._head(hidden).float()

    def _fused(self, layer: GatedLayer, residual: Tensor) -> Tensor:
        """Queries, keys and values side by side, [T, (heads + 2 * kv_heads) * head_dim]."""
        fused = layer.qkv(residual, norm=layer.input_norm)
        if layer.query_norm is not None and layer.key_norm is not None:
            config = self.config
            split = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
            queries, keys, _ = fused.view(fused.shape[0], -1, config.head_dim).split(split, dim=1)
            queries.copy_(layer.query_norm(queries))
            keys.copy_(layer.key_norm(keys))
        return fused
