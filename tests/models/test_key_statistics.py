"""What a model's keys and queries look like, against those that transformers hands to its attention."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from models.checkpoint import Checkpoint
from models.key_statistics import key_statistics
from models.loader import load_model
from tests.models.tiny import SHAPE, prompt, randomized, saved

_OPT = {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "word_embed_proj_dim": 32}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "opt": lambda: OPTForCausalLM(OPTConfig(vocab_size=SHAPE["vocab_size"], max_position_embeddings=64, **_OPT)),
}


def seen_by_attention(model: PreTrainedModel, tokens: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Queries and keys of each layer, [heads, tokens, head_dim], as attention gets them."""
    found: list[tuple[Tensor, Tensor]] = []

    def record(module, query, key, value, mask, **more):
        found.append((query[0], key[0]))
        return sdpa_attention_forward(module, query, key, value, mask, **more)

    AttentionInterface.register("recorded", record)
    model.set_attn_implementation("recorded")
    with torch.inference_mode():
        model(torch.tensor([tokens]))
    return found


@pytest.mark.parametrize("family", MODELS)
def test_statistics_are_those_of_what_attention_sees(family: str, tmp_path: Path) -> None:
    theirs, tokens = randomized(MODELS[family]()), prompt(40)
    found = key_statistics(load_model(Checkpoint(saved(theirs, tmp_path))), tokens)
    layers = seen_by_attention(theirs, tokens)
    scaled = theirs.config.model_type == "opt"  # its queries come scaled
    keys = torch.cat([key[:, 1:] for _, key in layers])
    kv_heads = keys.shape[0] // len(layers)
    queries = torch.cat([query.unflatten(0, (kv_heads, -1)).flatten(1, 2) for query, _ in layers])
    factor = keys.shape[-1] if scaled else 1
    torch.testing.assert_close(found.mean, keys.mean(1), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.variance, keys.var(1, correction=0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.query_square, queries.square().mean(1) * factor, rtol=1e-3, atol=1e-4)
