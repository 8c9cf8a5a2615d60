"""Measures a model's `Calibration`: passage by passage, then one fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.causal_lm import CausalLM
from models.errors import ModelError
from models.repetition import BLOCK, Attended, attended
from models.ridge import RidgeSums
from models.tokenizer import Tokenizer
from models.whole_file import write_whole
from paged_kv.calibration import Calibration
from paged_kv.eviction import EvictionDriver
from paged_kv.lanes import LaneProfile
from paged_kv.policies.calibrated import Calibrated
from paged_kv.policy import ScoreView
from paged_kv.scoring import LinearScorer

REQUEST = "\n\nRepeat the previous context exactly.\n\n"
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75)  # of rows kept, at which the lane profile is measured
_PASSAGE = 4 * BLOCK  # tokens, where the model's context has room for it twice
_FLOOR = 1e-4  # weights are told apart down to about here
_SINKS = 4  # rows whose weights say nothing of the tokens they belong to
_EVEN = Calibrated(needed=1.0, recalled=0.5, flow=2.0)  # a profile serves any policy, so both scores weigh alike
_RIDGE = 1e-3  # of the mean variance of the features


def passage_length(context: int, request: Sequence[int]) -> int:
    """Tokens of a passage for a model that takes `context` tokens. Raises ModelError if they are too few."""
    room = (context - len(request)) // 2 // BLOCK * BLOCK
    if room < 2 * BLOCK:
        needed = 4 * BLOCK + len(request)
        raise ModelError(f"the model's context of {context} tokens is too short to calibrate; it takes {needed}")
    return min(_PASSAGE, room)


def passages(tokenizer: Tokenizer, texts: Sequence[str], count: int, length: int) -> Iterator[tuple[int, ...]]:
    """Up to `count` passages of `length` tokens: the first of each text that is long enough, then the second, ...

    Each begins with the special tokens that the model expects before a text.
    """
    start = tokenizer.encode("")
    size = length - len(start)
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    found = 0
    for first in range(0, max(map(len, encoded), default=0), size):
        for ids in encoded:
            if len(ids) >= first + size and found < count:
                found += 1
                yield (*start, *ids[first : first + size])


class Calibrator:
    """Owns the sums that the fit is made of; `add` passages, then `fit`. It can be stored between two passages.

    The scores are fitted by ridge regression, layer by layer, from what attention takes in to the logarithms of
    `Attended.recall` and `Attended.flow`. The lane profile is what the measured scores themselves would keep.
    """

    def __init__(self, model: CausalLM, request: Sequence[int], block: int = BLOCK) -> None:
        config = model.config
        features = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.count = 0
        self._model = model
        self._request = request
        self._block = block
        self._driver = EvictionDriver(_EVEN, _SINKS, _EVEN.defaults.recent, "global", config.num_kv_heads)
        self._sums = RidgeSums(config.num_layers, features, 2 * config.num_kv_heads)
        self._profile = torch.zeros(len(SHARES), config.num_lanes)

    def add(self, passage: Sequence[int]) -> None:
        """Measure one passage, of more than one block of tokens."""
        found = attended(self._model, passage, self._request, self._block)
        length = (len(passage) - 1) // self._block * self._block  # those behind have no later block to say their flow
        rows = slice(_SINKS, length)
        for layer, features in enumerate(found.features):
            targets = torch.cat((found.recall[layer][:, rows], found.flow[layer][:, rows]))
            self._sums.add(layer, features[rows], targets.add(_FLOOR).log().mT)
        self._profile += self._shares_kept(found, length)
        self.count += 1

    def fit(self) -> Calibration:
        """The calibration from all passages so far."""
        weights, constants = self._sums.solve(_RIDGE)
        by_score = weights.unflatten(2, (2, -1)).permute(0, 3, 2, 1)  # [layers, kv_heads, scores, features]
        bias = constants.unflatten(1, (2, -1)).mT
        rows = self._profile / self.count
        return Calibration(LinearScorer(by_score.contiguous(), bias.contiguous()), LaneProfile(rows.mean(dim=1), rows))

    def save(self, path: Path, task: str) -> None:
        """Store the sums, so that a later run of the same `task` goes on from here. Raises ModelError."""
        write_whole(path, {**self._sums.tensors(), "profile": self._profile}, {"state": json.dumps([task, self.count])})

    def resume(self, path: Path, task: str) -> bool:
        """Go on from what `save` stored for the same `task`; False if there is nothing of that kind."""
        try:
            with safe_open(path, framework="pt") as file:
                known, count = json.loads((file.metadata() or {})["state"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        except (OSError, SafetensorError, LookupError, TypeError, ValueError):
            return False
        if known != task:
            return False
        self._sums.restore(tensors)
        self._profile, self.count = tensors["profile"].clone(), count
        return True

    def _shares_kept(self, found: Attended, length: int) -> Tensor:
        """The share of its first `length` rows that each lane keeps by the measured scores, [shares, lanes]."""
        written = torch.stack((found.recall, found.flow), dim=-1)[:, :, :length].flatten(0, 1).add(_FLOOR).log()
        lanes = written.shape[0]
        view = ScoreView(torch.arange(length), torch.full((lanes,), length), None, 0, length, written=written)
        kept = []
        for share in SHARES:
            view = replace(view, keep=round(share * length))
            survives = self._driver.choose(self._driver.policy.score(view), view, view.keep * lanes)
            kept.append(survives.float().mean(dim=1))
        return torch.stack(kept)
