"""Has a model read a text once, and answer questions about it with only some of the text's rows, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from models.causal_lm import CausalLM
from models.dense_pass import DensePass, joined_heads, split_heads
from models.exams import Question
from paged_kv.policy import Policy, ScoreView
from paged_kv.rotary import Rotary

_BLOCK = 256  # tokens whose queries are looked at together


@dataclass(frozen=True, slots=True, eq=False)
class ReadText:
    """All rows of a text of n tokens, per layer keys and values [kv_heads, n, head_dim], and what a policy sees."""

    rows: Sequence[tuple[Tensor, Tensor]]
    view: ScoreView


def read_text(model: CausalLM, text: Sequence[int], policy: Policy) -> ReadText:
    """Read `text`, and note beside its rows what `policy` observes; it may not be one with a scorer."""
    assert policy.scorer is None
    reading = _Reading(model, policy)
    reading.run(text)
    kept = torch.full((model.config.num_lanes,), len(text))
    view = ScoreView(torch.arange(len(text)), kept, None, 0, len(text))
    if policy.observation is not None:
        view = replace(view, statistic=policy.observation.statistic(torch.cat(reading.states)))
    if policy.reads_rows:
        keys, values = (torch.cat(parts) for parts in zip(*reading.rows, strict=True))
        view = replace(view, keys=keys, values=values)
    return ReadText(reading.rows, view)


def answer(
    model: CausalLM, read: ReadText, survives: Tensor, questions: Sequence[Question]
) -> list[tuple[Tensor, Tensor]]:
    """Ask each question by itself, with the rows of `survives` bool [lanes, n].

    Returns for each, [tokens of its answer]: minus the log-likelihoods, and whether each token is the likeliest.
    """
    tokens = [(*question.asked, *question.answer[:-1]) for question in questions]
    positions = torch.cat([torch.arange(len(each)) for each in tokens]) + read.view.seen
    attend = _Answering(model, read, survives, [len(each) for each in tokens]).attend
    hidden = model.hidden(torch.tensor([token for each in tokens for token in each]), positions, attend)
    sizes = [len(question.answer) for question in questions]
    parts = hidden.split([len(each) for each in tokens])
    logits = model.logits(torch.cat([part[-size:] for part, size in zip(parts, sizes, strict=True)])).float()
    right = torch.tensor([token for question in questions for token in question.answer])
    losses, likeliest = cross_entropy(logits, right, reduction="none"), logits.argmax(dim=-1) == right
    return list(zip(losses.split(sizes), likeliest.split(sizes), strict=True))


class _Reading(DensePass):
    """Holds on to the rows, and to what is noted about each: uint8 [kv_heads, n, state_bytes] per layer."""

    def __init__(self, model: CausalLM, policy: Policy) -> None:
        super().__init__(model, _BLOCK)
        self._observation = policy.observation
        self.rows: list[tuple[Tensor, Tensor]] = []
        self.states: list[Tensor] = []

    def _read(self, keys: Tensor, values: Tensor) -> None:
        self.rows.append((keys.clone(), values.clone()))
        if self._observation is not None:
            self.states.append(torch.zeros(*keys.shape[:2], self._observation.state_bytes, dtype=torch.uint8))

    def _note(self, layer: int, weights: Tensor) -> None:
        if self._observation is None:
            return
        rows = weights.shape[-1]
        positions = torch.arange(rows - weights.shape[-2], rows)
        measured = self._observation.measured(weights.mean(dim=1), (positions + 1).unsqueeze(-1))
        state = self.states[layer]
        state[:, :rows] = self._observation.record(state[:, :rows], measured, positions.expand(state.shape[0], -1))


class _Answering:
    """Attention of questions that stand side by side, `lengths` tokens each, and see the text but not each other."""

    def __init__(self, model: CausalLM, read: ReadText, survives: Tensor, lengths: Sequence[int]) -> None:
        self._config = model.config
        self._read = read
        self._survives = survives.view(model.config.num_layers, model.config.num_kv_heads, -1)
        number = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        place = torch.arange(number.numel())
        self._hidden = (number.unsqueeze(-1) != number) | (place > place.unsqueeze(-1))

    def attend(self, layer: int, fused: Tensor, rotary: Rotary | None) -> Tensor:
        """See `Attend`."""
        queries, keys, values = split_heads(self._config, fused, rotary)
        output = torch.empty_like(queries)
        for head, survives in enumerate(self._survives[layer]):
            old_keys, old_values = (rows[head, survives] for rows in self._read.rows[layer])
            scores = queries[head] @ torch.cat((old_keys, keys[head])).mT
            scores[..., old_keys.shape[0] :].masked_fill_(self._hidden, float("-inf"))
            output[head] = scores.softmax(dim=-1) @ torch.cat((old_values, values[head]))
        return joined_heads(output)
