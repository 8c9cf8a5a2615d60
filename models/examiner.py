"""Marks for what a model still knows of texts once rows were evicted under a lane profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models.causal_lm import CausalLM
from models.exams import Exam
from models.remembering import ReadText, answer, read_text
from paged_kv.eviction import EvictionDriver
from paged_kv.lanes import LaneProfile
from paged_kv.policy import Policy


@dataclass(frozen=True, slots=True)
class Marks:
    """`loss`: minus the log-likelihood of a token, as a mean over the answers, which end with how the text goes on.

    `found`: the share of facts that greedy decoding gives whole. `text`: the loss of how the text goes on, alone.
    """

    loss: float
    found: float
    text: float

    @staticmethod
    def mean(marks: Sequence[Marks]) -> Marks:
        """Of at least one."""
        count = len(marks)
        return Marks(
            sum(each.loss for each in marks) / count,
            sum(each.found for each in marks) / count,
            sum(each.text for each in marks) / count,
        )


class Examiner:
    """Owns what `model` has read of each exam; `add` them, then ask for `marks` as often as you like.

    Rows are evicted as `policy` says when a text was read and before questions come, down to `share` of them.
    """

    def __init__(self, model: CausalLM, policy: Policy, share: float) -> None:
        self.kv_heads = model.config.num_kv_heads
        self._model = model
        self._policy = policy
        self._share = share
        self._exams: list[tuple[Exam, ReadText, Tensor]] = []

    def add(self, exam: Exam) -> None:
        """Read the text of one more exam."""
        read = read_text(self._model, exam.text, self._policy)
        view = replace(read.view, keep=round(self._share * read.view.seen))
        self._exams.append((exam, replace(read, view=view), self._policy.score(view)))

    def __len__(self) -> int:
        return len(self._exams)

    def marks(self, numbers: Sequence[int], profile: LaneProfile | None) -> Marks:
        """Of the exams at these places, with rows kept by `profile`, or all of them."""
        return Marks.mean([self._marks(number, profile) for number in numbers])

    def _marks(self, number: int, profile: LaneProfile | None) -> Marks:
        exam, read, scores = self._exams[number]
        answers = answer(self._model, read, self._survives(read, scores, profile), exam.questions)
        loss = float(torch.cat([losses for losses, _ in answers]).mean())
        found = sum(bool(likeliest.all()) for _, likeliest in answers[:-1]) / len(exam.facts)
        return Marks(loss, found, float(answers[-1][0].mean()))

    def _survives(self, read: ReadText, scores: Tensor, profile: LaneProfile | None) -> Tensor:
        view, defaults = read.view, self._policy.defaults
        lanes = view.kept.numel()
        if profile is None:
            return torch.ones(lanes, view.seen, dtype=torch.bool)
        driver = EvictionDriver(
            self._policy, defaults.sinks, defaults.recent, "profile", self.kv_heads, defaults.pool, profile
        )
        return driver.choose(scores, view, view.keep * lanes)
