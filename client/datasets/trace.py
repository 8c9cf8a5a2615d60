"""Requests as somebody recorded them: when they came, how long they were, what they had in common.

The file is JSON lines or CSV; times count from the first request. Known are the columns of

- Mooncake's traces: `timestamp` in ms, `input_length`, `output_length`, and `hash_ids`, one for each block of 512
  tokens, so that equal beginnings are equal again;
- BurstGPT (`Timestamp` in s, `Request tokens`, `Response tokens`) and Azure's LLM traces (`TIMESTAMP` as a date,
  `ContextTokens`, `GeneratedTokens`);
- what `--result-csv` of this program writes.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np

from client.errors import BenchError
from client.flags import flag
from client.material import Material, read_text
from client.prompts import Content, Prompt, Session
from client.sources import FromFile
from client.values import whole

BLOCK = 512
VOCAB_SIZE = 10000


@dataclass(frozen=True, slots=True)
class _Columns:
    """The names of the columns of one kind of file, and how its times become seconds."""

    time: str
    input_len: str
    output_len: str
    seconds: Callable[[Any], float]


_KINDS = (
    _Columns("timestamp", "input_length", "output_length", lambda ms: float(ms) / 1000),
    _Columns("Timestamp", "Request tokens", "Response tokens", float),
    _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", lambda date: _date(date).timestamp()),
    _Columns("due_s", "input_tokens", "output_tokens", float),
)


@dataclass(frozen=True, kw_only=True)
class Trace(FromFile):
    """See the module."""

    max_len: int | None = flag(
        "--trace-max-len", parse=whole(2), metavar="N", help="leave out requests with more tokens in all; default: none"
    )

    def sessions(self, count: int, material: Material) -> list[Session]:
        """See `Dataset`. The first `count` requests of the file, or as many as it has."""
        found: list[Session] = []
        for number, row in enumerate(_rows(read_text(self.file), self.file.suffix == ".csv"), start=1):
            if len(found) == count:
                break
            session = self._session(row, number, material)
            if self.max_len is None or session.prompts[0].input_len + session.prompts[0].output_len <= self.max_len:
                found.append(session)
        if not found:
            raise BenchError(f"--dataset-path: {self.file} holds no request that may be sent")
        begin = min(session.due or 0.0 for session in found)
        return sorted((replace(one, due=(one.due or 0.0) - begin) for one in found), key=lambda one: one.due or 0.0)

    def _session(self, row: Mapping[str, Any], number: int, material: Material) -> Session:
        kind = next((kind for kind in _KINDS if kind.time in row and kind.input_len in row), None)
        if kind is None:
            known = "; ".join(f"{kind.time}, {kind.input_len}, {kind.output_len}" for kind in _KINDS)
            raise BenchError(f"--dataset-path: {self.file} has none of the known columns: {known}")
        try:
            due = kind.seconds(row[kind.time])
            size, output = (max(1, int(float(row[name] or 0))) for name in (kind.input_len, kind.output_len))
        except (KeyError, ValueError, TypeError) as error:
            raise BenchError(f"--dataset-path: {self.file}, request {number}: {error}") from error
        content = _content(size, row.get("hash_ids") or (), material)
        return Session((Prompt(content, size, output),), due)


def _rows(text: str, is_csv: bool) -> Iterator[Mapping[str, Any]]:
    lines = text.splitlines()
    if is_csv:
        yield from csv.DictReader(lines)
        return
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise BenchError(f"--dataset-path: line {number} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise BenchError(f"--dataset-path: line {number} is no JSON object")
        yield row


def _content(size: int, blocks: Iterable[int], material: Material) -> Content:
    """`size` tokens; those of a block depend on its number only, so equal blocks are equal text."""
    seeds = [np.random.default_rng([7, int(block)]) for block in blocks]
    parts = [replace(material, rng=rng) for rng in seeds[: size // BLOCK]]
    rest = size - BLOCK * len(parts)
    if material.as_ids:
        content = [token for part in parts for token in part.ids(BLOCK, VOCAB_SIZE)]
        return content + (material.ids(rest, VOCAB_SIZE) if rest else [])
    return " ".join([*(part.words(BLOCK) for part in parts), *([material.words(rest)] if rest else [])])


def _date(value: str) -> datetime:
    """An ISO date; digits of seconds beyond microseconds are cut."""
    whole_part, dot, fraction = value.strip().partition(".")
    return datetime.fromisoformat(whole_part + dot + fraction[:6])


DATASET = Trace
