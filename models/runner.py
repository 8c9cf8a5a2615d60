"""Executes plans: the data plane's one entrance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from models.causal_lm import CausalLM
from models.logprobs import logprob_of
from models.sampler import foresee, sample
from models.stopwatch import Stopwatch
from paged_kv.backend import AttentionBackend
from paged_kv.batch import PagedBatch, TableMirror
from paged_kv.eviction import EvictionDriver, Target
from paged_kv.pool import KVPool
from paged_kv.rotary import Rotary
from paged_kv.table import Counts
from scheduler.plan import Contest, Eviction, SequenceWork, StepPlan, StepResult, WorkResult
from scheduler.request import TokenLogprob

_SCORED_ROWS = 64  # prompt positions whose logits are held at once


class ModelRunner:
    """Owns the model, the pool and the mirror of the tables; one thread calls it, one plan at a time.

    `drivers` maps policy names to what evicts for them. A policy whose observation is not the pool's must not need one.
    `vocab_size`: the tokens that there are, where the model has more rows than that; what is beyond is never drawn.
    """

    def __init__(
        self,
        model: CausalLM,
        pool: KVPool,
        mirror: TableMirror,
        backend: AttentionBackend,
        drivers: Mapping[str, EvictionDriver],
        vocab_size: int | None = None,
    ) -> None:
        self._model = model
        self._pool = pool
        self._mirror = mirror
        self._backend = backend
        self._drivers = drivers
        self._vocab_size = vocab_size

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step of the scheduler's. See `StepPlan` for the order of things."""
        watch = Stopwatch()
        for slot in plan.released:
            self._mirror.release(slot)
        if plan.freed_pages.size:
            self._pool.poison(torch.from_numpy(plan.freed_pages).long())
        results = self._forward(plan.work, watch) if plan.work else ()
        kept = [self._evict(eviction) for eviction in plan.evictions]
        if plan.contest is not None:
            kept.extend(self._squeeze(plan.contest))
        watch.lap("eviction")
        return StepResult(results, tuple(kept), watch.seconds)

    def _forward(self, work: Sequence[SequenceWork], watch: Stopwatch) -> tuple[WorkResult, ...]:
        foresee([item.sample for item in work if item.sample is not None])
        for item in work:
            self._mirror.extend(item.slot, item.update, item.reused + item.tokens.size)
        batch = self._mirror.batch(
            [item.slot for item in work],
            [item.tokens.size for item in work],
            [item.position for item in work],
            tuple(self._drivers[item.policy].policy.observation is not None for item in work),
        )
        tokens = torch.cat([torch.from_numpy(item.tokens) for item in work]).to(batch.positions.device)
        watch.lap("batch")
        hidden = self._model.hidden(tokens, batch.positions, partial(self._attend, batch, watch))
        drawn = iter(self._draw(work, batch, hidden, watch))
        results = []
        for item, start in zip(work, batch.starts[:-1], strict=True):
            result = next(drawn) if item.sample is not None else WorkResult()
            results.append(replace(result, prompt=self._score(item, hidden[start:])))
        watch.lap("sampling")
        return tuple(results)

    def _attend(self, batch: PagedBatch, watch: Stopwatch, layer: int, fused: Tensor, rotary: Rotary | None) -> Tensor:
        watch.lap("linear")
        queries = self._backend.append(self._pool, layer, fused, rotary, batch)
        attended = self._backend.attend(self._pool, layer, queries, batch).flatten(1)
        watch.lap("attention")
        return attended

    def _draw(
        self, work: Sequence[SequenceWork], batch: PagedBatch, hidden: Tensor, watch: Stopwatch
    ) -> list[WorkResult]:
        orders = [item.sample for item in work if item.sample is not None]
        rows = [stop - 1 for item, stop in zip(work, batch.starts[1:], strict=True) if item.sample is not None]
        logits = self._logits(hidden[rows]) if rows else None
        watch.lap("linear")
        return [] if logits is None else sample(logits, orders)

    def _score(self, item: SequenceWork, hidden: Tensor) -> tuple[TokenLogprob, ...]:
        """Logprobs of the prompt tokens that follow those of `item`, whose hidden states come first in `hidden`."""
        if item.targets is None:
            return ()
        scored: list[TokenLogprob] = []
        for start in range(0, item.targets.size, _SCORED_ROWS):
            targets = item.targets[start : start + _SCORED_ROWS].tolist()
            rows = self._logits(hidden[start : start + len(targets)]).cpu().numpy()
            scored.extend(logprob_of(row, token, item.num_top) for row, token in zip(rows, targets, strict=True))
        return tuple(scored)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)[:, : self._vocab_size]

    def _evict(self, eviction: Eviction) -> Counts:
        driver, fresh = self._drivers[eviction.policy], torch.from_numpy(eviction.fresh).long()
        return _counts(driver.compress(self._pool, self._mirror, _target(eviction), fresh))

    def _squeeze(self, contest: Contest) -> Iterator[Counts]:
        driver = self._drivers[contest.policy]
        targets = [_target(member) for member in contest.members]
        return map(_counts, driver.compress_together(self._pool, self._mirror, targets, contest.max_pages))


def _target(eviction: Eviction) -> Target:
    return Target(eviction.slot, eviction.keep_rows, eviction.seen, eviction.pinned)


def _counts(left: Tensor) -> Counts:
    counts: Counts = left.to(torch.int32).cpu().numpy()
    return counts
