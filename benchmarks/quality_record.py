"""What was measured, one record per case, on disk and as means."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FULL = "full"
TEXT = "text"


@dataclass(frozen=True, slots=True)
class Record:
    """One case: what compressed it, to which share of rows (or how many per lane), and what came of it.

    `rows`: the format of the rows. `figures`: `found`, `nll` (per token of the answer), `kept` (share of rows left)
    and others, by task.
    """

    task: str
    tokens: int
    rows: str
    variant: str
    share: float | int
    figures: Mapping[str, float]


Means = Mapping[tuple[str, str, float | int], Mapping[str, float]]
"""Of one task: the means of all figures by rows, variant and share; `cases` counts them."""


def write(path: Path, records: Iterable[Record]) -> None:
    """Replace `path` by `records`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".writing")
    unfinished.write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def read(paths: Iterable[Path]) -> list[Record]:
    """All records of several files. Of two about the same thing both count."""
    return [Record(**entry) for path in paths for entry in json.loads(path.read_text(encoding="utf-8"))]


def tasks(records: Iterable[Record]) -> list[tuple[str, int]]:
    """Which tasks there are, with prompts of how many thousands of tokens, in order of appearance."""
    return list(dict.fromkeys((record.task, size_of(record)) for record in records))


def size_of(record: Record) -> int:
    """The length of its prompt in thousands of tokens, rounded."""
    return round(record.tokens / 1000)


def means(records: Sequence[Record], task: str, thousands: int) -> Means:
    """Of one task with prompts of one size; texts also get `ratio`, their perplexity by that of the full cache."""
    groups: dict[tuple[str, str, float | int], list[Mapping[str, float]]] = {}
    for record in records:
        if (record.task, size_of(record)) == (task, thousands):
            groups.setdefault((record.rows, record.variant, record.share), []).append(record.figures)
    found = {
        key: {name: statistics.fmean(each[name] for each in group) for name in group[0]} | {"cases": len(group)}
        for key, group in groups.items()
    }
    if task == TEXT:
        for (rows, _, _), values in found.items():
            full = found.get(("float32", FULL, 1.0)) or found.get((rows, FULL, 1.0))
            if full:
                values["ratio"] = math.exp(values["nll"] - full["nll"])
    return found
