"""Measures a model's `Calibration`: passage by passage, then one fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from models.causal_lm import CausalLM
from models.repetition import BLOCK, Attended, attended
from models.tokenizer import Tokenizer
from paged_kv.calibration import Calibration
from paged_kv.eviction import EvictionDriver
from paged_kv.lanes import LaneProfile
from paged_kv.policies.calibrated import Calibrated
from paged_kv.policy import ScoreView
from paged_kv.scoring import LinearScorer

PASSAGE = 4 * BLOCK  # tokens
REQUEST = "\n\nRepeat the previous context exactly.\n\n"
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75)  # of rows kept, at which the lane profile is measured
_FLOOR = 1e-4  # weights are told apart down to about here
_SINKS = 4  # rows whose weights say nothing of the tokens they belong to
_RIDGE = 1e-3  # of the mean variance of the features


def passages(tokenizer: Tokenizer, texts: Sequence[str], count: int) -> Iterator[tuple[int, ...]]:
    """Up to `count` passages of `PASSAGE` tokens: the first of each text that is long enough, then the second, ..."""
    encoded = [tokenizer.encode(text) for text in texts]
    found = 0
    for start in range(0, max(map(len, encoded), default=0), PASSAGE):
        for ids in encoded:
            if len(ids) >= start + PASSAGE and found < count:
                found += 1
                yield tuple(ids[start : start + PASSAGE])


class Calibrator:
    """Owns the sums that the fit is made of; `add` passages, then `fit`. It can be stored between two passages.

    The scores are fitted by ridge regression, layer by layer, from what attention takes in to the logarithms of
    `Attended.recall` and `Attended.flow`. The lane profile is what the measured scores themselves would keep.
    """

    def __init__(self, model: CausalLM, request: Sequence[int]) -> None:
        config = model.config
        features = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.count = 0
        self._model = model
        self._request = request
        self._driver = EvictionDriver(Calibrated(), _SINKS, Calibrated().defaults.recent, "global", config.num_kv_heads)
        # Of the features with a one beside them: products with themselves, and with the targets of both scores.
        self._products = torch.zeros(config.num_layers, features + 1, features + 1)
        self._moments = torch.zeros(config.num_layers, features + 1, 2 * config.num_kv_heads)
        self._profile = torch.zeros(len(SHARES), config.num_lanes)

    def add(self, passage: Sequence[int]) -> None:
        """Measure one passage of `PASSAGE` tokens."""
        found = attended(self._model, passage, self._request)
        rows = slice(_SINKS, PASSAGE - BLOCK)
        ones = torch.ones(rows.stop - rows.start, 1)
        for layer, features in enumerate(found.features):
            x = torch.cat((features[rows], ones), dim=1)
            y = torch.cat((found.recall[layer][:, rows], found.flow[layer][:, rows])).add(_FLOOR).log().mT
            self._products[layer].addmm_(x.mT, x)
            self._moments[layer].addmm_(x.mT, y)
        self._profile += self._shares_kept(found)
        self.count += 1

    def fit(self) -> Calibration:
        """The calibration from all passages so far."""
        fitted = torch.stack([self._solve(*both) for both in zip(self._products, self._moments, strict=True)])
        by_score = fitted.unflatten(2, (2, -1)).permute(0, 3, 2, 1)  # [layers, kv_heads, scores, features + 1]
        scorer = LinearScorer(by_score[..., :-1].contiguous(), by_score[..., -1].contiguous())
        rows = self._profile / self.count
        return Calibration(scorer, LaneProfile(rows.mean(dim=1), rows))

    def save(self, path: Path, fingerprint: str) -> None:
        """Store the sums, so that a later run goes on from here. Replaces `path` as a whole or not at all."""
        sums = {"products": self._products, "moments": self._moments, "profile": self._profile}
        unfinished = path.with_suffix(".writing")
        save_file(sums, unfinished, {"state": json.dumps([fingerprint, self.count])})
        unfinished.replace(path)

    def resume(self, path: Path, fingerprint: str) -> bool:
        """Go on from what `save` stored for the same model; False if there is nothing of that kind."""
        if not path.is_file():
            return False
        with safe_open(path, framework="pt") as file:
            known, count = json.loads(file.metadata()["state"])
            if known != fingerprint:
                return False
            self.count = count
            self._products, self._moments, self._profile = (
                file.get_tensor(name) for name in ("products", "moments", "profile")
            )
        return True

    def _shares_kept(self, found: Attended) -> Tensor:
        """The share of its rows that each lane keeps by the measured scores, [shares, lanes]."""
        length = PASSAGE - BLOCK
        written = torch.stack((found.recall, found.flow), dim=-1)[:, :, :length].flatten(0, 1).add(_FLOOR).log()
        lanes = written.shape[0]
        view = ScoreView(torch.arange(length), torch.full((lanes,), length), None, 0, length, written=written)
        kept = []
        for share in SHARES:
            view = replace(view, keep=round(share * length))
            survives = self._driver.choose(self._driver.policy.score(view), view, view.keep * lanes)
            kept.append(survives.float().mean(dim=1))
        return torch.stack(kept)

    @staticmethod
    def _solve(products: Tensor, moments: Tensor) -> Tensor:
        """Ridge regression, the constant left alone: [features + 1, targets]."""
        a, b = products.double(), moments.double()
        n, mean = a[-1, -1], a[-1, :-1] / a[-1, -1]
        spread = a[:-1, :-1] - n * torch.outer(mean, mean)
        spread.diagonal().add_(_RIDGE * spread.diagonal().mean())
        weights = torch.linalg.solve(spread, b[:-1] - torch.outer(mean, b[-1]))
        return torch.cat((weights, (b[-1] / n - mean @ weights).unsqueeze(0))).float()
