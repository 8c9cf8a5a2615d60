"""Measures cases: what a compressed sequence thinks of the answer that should come."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from benchmarks.forced import Fed, Feed, Saved
from benchmarks.quality_engine import SLOTS, Engine, Variant
from benchmarks.quality_record import FULL, Record
from benchmarks.quality_texts import Case
from scheduler.request import TokenLogprob


@dataclass(frozen=True, slots=True)
class _Trial:
    case: Case
    variant: str
    share: float


def measure(
    engine: Engine, cases: Iterable[Case], shares: Sequence[float], done: Callable[[int], object]
) -> Iterator[Record]:
    """Every variant of `engine` on every case at every share below 1, and full: at 1 all are full.

    A record's `found` is 1 if greedy decoding gives the whole answer, else 0. `done` hears how many cases are through.
    """
    for prompt, together in groupby(cases, key=lambda case: case.prompt):
        alike = list(together)
        saved = _read(engine, prompt)
        trials = [trial for case in alike for trial in _trials(engine, case, shares)]
        late: dict[tuple[int, ...], Saved] = {(): saved}
        for case in alike:
            if case.late not in late:
                late[case.late] = _read(engine, case.late, saved)
        for start in range(0, len(trials), SLOTS):
            yield from _together(engine, late, trials[start : start + SLOTS])
        done(len(alike))


def _trials(engine: Engine, case: Case, shares: Sequence[float]) -> Iterator[_Trial]:
    for variant in engine.variants:
        if variant == Variant(FULL):
            yield _Trial(case, FULL, 1.0)
        else:
            yield from (_Trial(case, str(variant), share) for share in shares if share < 1)


def _read(engine: Engine, tokens: tuple[int, ...], before: Saved | None = None) -> Saved:
    """The rows of `tokens`, after those of `before`, none of them evicted."""
    forced, driver = engine.forced, str(engine.variants[0])
    lanes = engine.num_lanes
    fed = forced.restore(before, driver, lanes) if before else forced.begin(driver, lanes)
    forced.feed([Feed(fed, tokens)])
    saved = forced.save(fed)
    forced.end(fed)
    return saved


def _together(engine: Engine, late: dict[tuple[int, ...], Saved], trials: Sequence[_Trial]) -> Iterator[Record]:
    fed = [_compressed(engine, late, trial) for trial in trials]
    kept = [each.rows_per_lane / each.seen for each in fed]
    feeds = []
    for trial, each in zip(trials, fed, strict=True):
        tokens = trial.case.asked + trial.case.answer
        feeds.append(Feed(each, tokens[:-1], tokens[1:]))
    scored = engine.forced.feed(feeds)
    for each in fed:
        engine.forced.end(each)
    for trial, share, logprobs in zip(trials, kept, scored, strict=True):
        yield _record(trial, engine.rows, share, logprobs[-len(trial.case.answer) :])


def _compressed(engine: Engine, late: dict[tuple[int, ...], Saved], trial: _Trial) -> Fed:
    rules = engine.rules[trial.variant]
    if rules is not None and rules.streaming:  # it evicts while it reads, so nothing that was read whole is of use
        fed = engine.forced.begin(trial.variant, engine.num_lanes)
        engine.forced.read(fed, trial.case.prompt + trial.case.late, trial.share)
    else:
        fed = engine.forced.restore(late[trial.case.late], trial.variant, engine.num_lanes)
        engine.forced.compress(fed, trial.share)
    return fed


def _record(trial: _Trial, rows: str, kept: float, logprobs: Sequence[TokenLogprob]) -> Record:
    """Greedy decoding gives the answer if each of its tokens is the likeliest after those before it."""
    found = all(entry.top[0][0] == entry.token for entry in logprobs)
    nll = -math.fsum(entry.logprob for entry in logprobs) / len(logprobs)
    figures = {"found": float(found), "nll": nll, "kept": kept}
    return Record(trial.case.task, len(trial.case.prompt), rows, trial.variant, trial.share, figures)
