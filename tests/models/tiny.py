"""Tiny random models of transformers', and logits of ours computed through pages by the real runner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from models.causal_lm import Attend, CausalLM
from models.runner import ModelRunner
from paged_kv.allocator import PageAllocator
from paged_kv.backend import load_backend
from paged_kv.batch import TableMirror
from paged_kv.eviction import EvictionDriver
from paged_kv.format import load_format
from paged_kv.policy import load_policy
from paged_kv.pool import KVPool
from paged_kv.table import PageTable
from scheduler.plan import SequenceWork, StepPlan

VOCABULARY = 120
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def randomized(model: PreTrainedModel) -> PreTrainedModel:
    """`model` with weights of which no two are alike, norms and biases too, so that none can be left out unseen."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.25)
    return model.eval()


def tiny_llama(**changes: Any) -> PreTrainedModel:
    """The model where any will do."""
    return randomized(LlamaForCausalLM(LlamaConfig(**(SHAPE | changes))))


def saved(model: PreTrainedModel, folder: Path) -> Path:
    """`folder`, which now holds `model`."""
    model.save_pretrained(folder)
    return folder


def prompt(length: int, seed: int = 0, vocabulary: int = VOCABULARY) -> list[int]:
    """Random token ids."""
    return np.random.default_rng(seed).integers(vocabulary, size=length).tolist()


def hf_logits(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """What transformers computes for one text: float32 [tokens, vocabulary]."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].float()


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest logit."""
    return float((actual - expected).abs().max() / expected.abs().max())


class Recorder(CausalLM):
    """A model that remembers the logits of every token it was last run on."""

    def __init__(self, model: CausalLM) -> None:
        self.config = model.config
        self.seen = torch.empty(0)
        self._model = model

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        hidden = self._model.hidden(tokens, positions, attend)
        self.seen = self._model.logits(hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)


def paged_logits(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    steps: Iterable[Sequence[int]] | None = None,
    *,
    page_size: int = 4,
    cache: str = "float32",
) -> list[Tensor]:
    """Logits of all positions of each prompt, [tokens, vocabulary], read by a ModelRunner that keeps rows in pages.

    `steps`: how many tokens of each prompt each step reads; by default one step reads everything.
    """
    recorder, config = Recorder(model), model.config
    tables = [PageTable(config.num_lanes, page_size) for _ in prompts]
    allocator = PageAllocator(1 + config.num_lanes * sum(-(-len(tokens) // page_size) for tokens in prompts))
    pool = KVPool(allocator.num_usable + 1, page_size, config.head_dim, load_format(cache))
    mirror = TableMirror(len(prompts), config.num_layers, config.num_kv_heads, page_size)
    driver = EvictionDriver(load_policy("full"), 0, 0, "uniform", config.num_kv_heads)
    runner = ModelRunner(recorder, pool, mirror, load_backend("reference", model.config.head_dim), {"full": driver})
    done = [0] * len(prompts)
    logits: list[list[Tensor]] = [[] for _ in prompts]
    for counts in steps or [[len(tokens) for tokens in prompts]]:
        reads = [(slot, count) for slot, count in enumerate(counts) if count]
        work = []
        for slot, count in reads:
            tokens = np.array(prompts[slot][done[slot] : done[slot] + count], dtype=np.int64)
            update = tables[slot].extend(count, allocator)
            work.append(SequenceWork(slot, tokens, done[slot], "full", update))
            done[slot] += count
        runner.execute(StepPlan(work=tuple(work)))
        for (slot, _), part in zip(reads, recorder.seen.split([count for _, count in reads]), strict=True):
            logits[slot].append(part)
    return [torch.cat(parts) for parts in logits]
