"""From what workers told to medians and ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.engines.process import Report
from benchmarks.engines.protocol import COLD_START
from benchmarks.engines.timing import decode_rate, first_token

OTHERS = "others"
_BUSY = 10  # percent

Rounds = Sequence[Mapping[str, float]]
"""Of one engine: a figure per metric for each round."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table. `key` names it in files; `unit` is shown to people."""

    key: str
    title: str
    unit: str
    higher_is_better: bool = True
    compared: bool = True  # whether a ratio says something about the engine


def decode_key(sequences: int) -> str:
    """Names the run and the metric."""
    return f"decode {sequences}"


def prefill_key(tokens: int) -> str:
    """Names the run and the metric."""
    return f"prefill {tokens}"


def metrics(concurrency: Sequence[int], prefill: Sequence[int]) -> list[Metric]:
    """All lines of the table, in order."""
    return [
        *(Metric(decode_key(n), f"decode, {n} sequence{'s' * (n > 1)}", "tok/s") for n in concurrency),
        *(Metric(prefill_key(tokens), f"prefill, {tokens:,} tokens", "tok/s") for tokens in prefill),
        *(Metric(f"ttft {n}", _waiting(n), "s", higher_is_better=False) for n in _ends(concurrency)),
        Metric(COLD_START, "cold start to first token", "s", higher_is_better=False),
        Metric("peak memory", "peak memory", "MiB", higher_is_better=False),
        Metric(OTHERS, "CPU time that others took", "%", compared=False),
    ]


def figures(report: Report, new_tokens: int) -> dict[str, float]:
    """The figures of one worker; of runs with the same name the median counts. Raises ValueError, see `decode_rate`."""
    found: dict[str, list[float]] = {}
    for outcome in report.outcomes:
        kind, _, size = outcome.run.partition(" ")
        if outcome.run == COLD_START:
            found[COLD_START] = [outcome.since_spawn]
        elif kind == "prefill":
            found.setdefault(outcome.run, []).append(int(size) / first_token(outcome.arrivals))
        elif kind == "decode":
            found.setdefault(outcome.run, []).append(decode_rate(outcome.arrivals, new_tokens))
            found.setdefault(f"ttft {size}", []).append(first_token(outcome.arrivals))
    if report.closing is not None:
        found["peak memory"] = [report.closing.peak_bytes / 2**20]
    found[OTHERS] = [100 * report.others]
    return {key: statistics.median(values) for key, values in found.items()}


def medians(rounds: Rounds) -> dict[str, float]:
    """Over an engine's rounds, of each figure that all of them have."""
    return {key: statistics.median(one[key] for one in rounds) for key in _common(rounds)}


def ratios(ours: Rounds, theirs: Rounds, wanted: Iterable[Metric]) -> dict[str, float]:
    """How many times as good ours is: the median of what was measured in the same rounds.

    Speeds are divided by theirs, times and memory divide theirs: above 1 is better for ours throughout.
    """
    found = {}
    for metric in wanted:
        pairs = [
            (mine[metric.key], other[metric.key])
            for mine, other in zip(ours, theirs, strict=False)
            if metric.key in mine and metric.key in other
        ]
        if pairs and metric.compared:
            found[metric.key] = statistics.median(a / b if metric.higher_is_better else b / a for a, b in pairs)
    return found


def reservations(rounds: Mapping[str, Rounds], planned: int) -> list[str]:
    """What a reader has to know before the figures: engines (by heading) with fewer rounds, a busy machine."""
    said = [f"{name}: {len(done)} of {planned} rounds" for name, done in rounds.items() if len(done) < planned]
    busiest = max((one[OTHERS] for done in rounds.values() for one in done), default=0.0)
    if busiest >= _BUSY:
        said.append(f"others took up to {busiest:.0f}% of the CPU time")
    return said


def _common(rounds: Rounds) -> list[str]:
    return [key for key in (rounds[0] if rounds else {}) if all(key in one for one in rounds)]


def _ends(concurrency: Sequence[int]) -> list[int]:
    return sorted({min(concurrency), max(concurrency)})


def _waiting(sequences: int) -> str:
    return "time to first token, alone" if sequences == 1 else f"time to first token, mean of {sequences} at once"
