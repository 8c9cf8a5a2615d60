"""OPT (Zhang et al., arXiv 2205.01068), the models of the Scissorhands paper: learned positions, layer norm, ReLU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from models.causal_lm import Attend, CausalLM
from models.config import ModelConfig, refuse_activation
from models.linear import Linear
from models.weights import WeightReader

_POSITION_OFFSET = 2  # the position table keeps its first two entries for padding


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Layer norm over the last dimension, with weight and bias."""

    weight: Tensor
    bias: Tensor

    @staticmethod
    def read(weights: WeightReader, name: str) -> LayerNorm:
        """The norm called `name`. Raises ModelError."""
        return LayerNorm(weights.tensor(f"{name}.weight"), weights.tensor(f"{name}.bias"))

    def __call__(self, x: Tensor) -> Tensor:
        """[..., hidden] to the same shape."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class OptLayer:
    """Weights of one layer."""

    attention_norm: LayerNorm
    qkv: Linear
    output: Linear
    feed_forward_norm: LayerNorm
    up: Linear
    down: Linear

    @staticmethod
    def read(weights: WeightReader) -> OptLayer:
        """From the names that Hugging Face gives to an OPT layer. Raises ModelError."""
        return OptLayer(
            attention_norm=LayerNorm.read(weights, "self_attn_layer_norm"),
            qkv=weights.linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            output=weights.linear("self_attn.out_proj"),
            feed_forward_norm=LayerNorm.read(weights, "final_layer_norm"),
            up=weights.linear("fc1"),
            down=weights.linear("fc2"),
        )


class OptDecoder(CausalLM):
    """`norm_first`: norms stand before attention and feed-forward (all but OPT-350m), otherwise behind the residual."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightReader,
        layers: Sequence[OptLayer],
        embedding: Tensor,
        head: Linear,
        *,
        norm_first: bool,
    ) -> None:
        self.config = config
        self._layers = layers
        self._norm_first = norm_first
        self._embedding = embedding
        self._head = head
        self._positions = weights.tensor("embed_positions.weight")
        self._project_in = weights.linear("project_in") if weights.has("project_in.weight") else None
        self._project_out = weights.linear("project_out") if weights.has("project_out.weight") else None
        has_norm = weights.has("final_layer_norm.weight")
        self._norm = LayerNorm.read(weights, "final_layer_norm") if has_norm else None

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """See `CausalLM.hidden`."""
        x = functional.embedding(tokens, self._embedding)
        if self._project_in is not None:
            x = self._project_in(x)
        x = x + functional.embedding(positions + _POSITION_OFFSET, self._positions)
        for number, layer in enumerate(self._layers):
            x = self._layer(number, layer, x, attend)
        if self._norm is not None:
            x = self._norm(x)
        return self._project_out(x) if self._project_out is not None else x

    def logits(self, hidden: Tensor) -> Tensor:
        """See `CausalLM.logits`."""
        return self._head(hidden).float()

    def _layer(self, number: int, layer: OptLayer, x: Tensor, attend: Attend) -> Tensor:
        normed = layer.attention_norm(x) if self._norm_first else x
        x = x + layer.output(attend(number, layer.qkv(normed), None).to(x.dtype))
        if not self._norm_first:
            x = layer.attention_norm(x)
        normed = layer.feed_forward_norm(x) if self._norm_first else x
        x = x + layer.down(functional.relu(layer.up(normed)))
        return x if self._norm_first else layer.feed_forward_norm(x)


def build(config: Mapping[str, Any], weights: WeightReader) -> CausalLM:
    """The model that `config` (a config.json) describes. Raises ModelError."""
    refuse_activation(config, "activation_function", ("relu",))
    read = ModelConfig.read(config, rope=None, norm_eps=1e-5)
    prefix = "model.decoder." if weights.has("model.decoder.embed_tokens.weight") else "decoder."
    decoder = weights.under(prefix)
    layers = [
        OptLayer.read(decoder.under(f"layers.{i}."))
        for i in tqdm(range(read.num_layers), desc="Loading layers", disable=None, leave=False)
    ]
    embedding = decoder.tensor("embed_tokens.weight")
    head = weights.head("lm_head", f"{prefix}embed_tokens", embedding)
    norm_first = bool(config.get("do_layer_norm_before", True))
    return OptDecoder(read, decoder, layers, embedding, head, norm_first=norm_first)
