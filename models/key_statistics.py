"""Looks at a model's keys and queries for a moment, so that rows of few bits can be kept in a basis that suits them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from models.causal_lm import CausalLM
from models.sample_text import SAMPLE_TEXT
from models.tokenizer import Tokenizer
from paged_kv.basis import KeyStatistics
from paged_kv.rotary import Rotary


def usual_statistics(model: CausalLM, tokenizer: Tokenizer) -> KeyStatistics:
    """Those of a text of some 370 words; it takes as long as a prompt of that length."""
    return key_statistics(model, tokenizer.encode(SAMPLE_TEXT)[: model.config.max_position])


def key_statistics(model: CausalLM, tokens: Sequence[int]) -> KeyStatistics:
    """Those of one reading of `tokens`, two or more. The first is left out of the keys': it is unlike all others."""
    reading = _Reading(model)
    with torch.inference_mode():
        model.hidden(torch.tensor(tokens), torch.arange(len(tokens)), reading.attend)
    return KeyStatistics(*(torch.cat(parts) for parts in zip(*reading.found, strict=True)))


class _Reading:
    """Dense attention over one text. `found`: of each layer the parts of `KeyStatistics`, [kv_heads, head_dim] each."""

    def __init__(self, model: CausalLM) -> None:
        self._config = model.config
        self.found: list[tuple[Tensor, Tensor, Tensor]] = []

    def attend(self, layer: int, fused: Tensor, rotary: Rotary | None) -> Tensor:
        """See `Attend`; layers come in order."""
        assert layer == len(self.found)
        config = self._config
        split = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        parts: tuple[Tensor, ...] = fused.float().view(fused.shape[0], -1, config.head_dim).split(split, dim=1)
        queries, keys, values = parts
        queries, keys = (queries, keys) if rotary is None else (rotary(queries), rotary(keys))
        queries, keys, values = (part.transpose(0, 1) for part in (queries, keys, values))  # [heads, T, head_dim]
        squares = queries.square().mean(dim=1).unflatten(0, (config.num_kv_heads, -1)).mean(dim=1)
        variance, mean = torch.var_mean(keys[:, 1:], dim=1, correction=0)
        self.found.append((mean, variance, squares))
        output = functional.scaled_dot_product_attention(
            queries.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), is_causal=True, enable_gqa=True
        )
        return output[0].transpose(0, 1).flatten(1)
