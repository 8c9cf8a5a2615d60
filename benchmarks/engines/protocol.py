"""What goes to a worker and what comes back: one JSON document in, JSON lines out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

COLD_START = "cold start"
_SLACK = 8  # tokens per sequence that early sequences may generate while prompts of later ones are read


@dataclass(frozen=True, slots=True)
class Run:
    """Prompts (token ids) to be sent at once, and how many tokens each has to bring once all have their first."""

    name: str
    prompts: list[list[int]]
    new_tokens: int

    @property
    def most_new_tokens(self) -> int:
        """Where a sequence ends if nobody stops it: never before the run is over."""
        return 2 + self.new_tokens + (_SLACK * len(self.prompts) if self.new_tokens else 0)


@dataclass(frozen=True, slots=True)
class Job:
    """All that one worker does. `spawned`: when it was started, in seconds of the epoch. `flags`: for our server."""

    model: str
    threads: int
    spawned: float
    runs: list[Run]
    flags: list[str]

    @property
    def most_sequences(self) -> int:
        """Of any run."""
        return max(len(run.prompts) for run in self.runs)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, with all that it may generate."""
        return max(len(prompt) + run.most_new_tokens for run in self.runs for prompt in run.prompts)

    @property
    def most_tokens(self) -> int:
        """Tokens that the KV memory must hold at once."""
        return max(sum(len(prompt) + run.most_new_tokens for prompt in run.prompts) for run in self.runs)

    def to_json(self) -> str:
        """One document, for `from_json`."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        """The inverse of `to_json`."""
        fields = json.loads(text)
        return Job(**{**fields, "runs": [Run(**run) for run in fields["runs"]]})


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: when each sequence brought its tokens, in seconds since the prompts were sent.

    `since_spawn`: when the run was over, in seconds since the engine was started.
    """

    run: str
    arrivals: list[list[float]]
    since_spawn: float


@dataclass(frozen=True, slots=True)
class Closing:
    """A worker's last line. `peak_bytes`: the most resident memory its engine ever had, children included."""

    version: str
    peak_bytes: int


def to_line(value: Outcome | Closing) -> str:
    """One line of JSON, newline included."""
    return json.dumps(asdict(value)) + "\n"


def from_line(line: str) -> Outcome | Closing:
    """The inverse of `to_line`. Raises ValueError for anything that is no line of a worker."""
    fields: Any = json.loads(line)
    for kind in (Outcome, Closing):
        if isinstance(fields, dict) and fields.keys() == set(kind.__slots__):
            return kind(**fields)
    raise ValueError(f"no line of a worker: {line.strip()[:200]}")
