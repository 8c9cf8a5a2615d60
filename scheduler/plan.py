"""The border between deciding and computing: a frozen plan goes to the runner, a frozen result comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from paged_kv.allocator import PageIds
from paged_kv.table import Counts, TableUpdate
from scheduler.request import Constraint, SamplingParams, TokenLogprob, Unsatisfiable

EvictionReason = Literal["budget", "pressure"]


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """Draw the token that follows the work's last one.

    `choice` and `step` (tokens generated so far) with `params.seed` fix the random number, whatever else is in the
    batch. `prompt` and `output` hold the sequence's ids where a penalty, a bad word or the constraint needs them, else
    they are empty.
    `banned`: ids that may not be drawn yet (the end tokens, below `min_tokens`).
    """

    params: SamplingParams
    choice: int
    step: int
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class SequenceWork:
    """Tokens of one sequence to compute: ids `tokens` [n] int64 at text positions `position`, `position + 1`, ...

    Every lane of table slot `slot` takes n new rows; `update` says which pages the slot got for them, and before them
    for `reused` rows that are there already.
    `targets`: the ids that follow each token, where logprobs of the prompt are wanted, with `num_top` alternatives.
    """

    slot: int
    tokens: npt.NDArray[np.int64]
    position: int
    policy: str
    update: TableUpdate
    sample: SampleOrder | None = None
    targets: npt.NDArray[np.int64] | None = None
    num_top: int = 0
    reused: int = 0


@dataclass(frozen=True, slots=True)
class Eviction:
    """Keep the best `keep_rows` rows of slot `slot`, counted over all its lanes; `seen` tokens were computed so far.

    `pinned`: rows at the beginning of each lane that stay where they are besides, since others read them.
    `fresh`: pages to copy them to, lane after lane, where others read those that hold them; else they move in place.
    """

    slot: int
    policy: str
    keep_rows: int
    seen: int
    reason: EvictionReason
    pinned: int = 0
    fresh: PageIds = field(default_factory=lambda: np.zeros(0, dtype=np.int32))


@dataclass(frozen=True, slots=True)
class Contest:
    """Sequences of one policy give up rows until they would hold `max_pages` pages with a row more in each lane.

    The least important rows go, whichever of `members` holds them. What each of them would keep alone stays in any
    case, and with that much `max_pages` can be reached. Survivors move in place.
    """

    members: tuple[Eviction, ...]
    max_pages: int

    @property
    def policy(self) -> str:
        """The policy of all members."""
        return self.members[0].policy


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: first `released` slots are forgotten, then `work` is computed, then `evictions` and `contest` run.

    `freed_pages`: pages that nobody holds any more, for a runner that poisons them; empty unless asked for.
    """

    work: tuple[SequenceWork, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    contest: Contest | None = None
    released: tuple[int, ...] = ()
    freed_pages: PageIds = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(work.tokens.size for work in self.work)

    @property
    def all_evictions(self) -> tuple[Eviction, ...]:
        """Those of each sequence for itself, then the members of the contest."""
        return self.evictions if self.contest is None else (*self.evictions, *self.contest.members)


@dataclass(frozen=True, slots=True)
class WorkResult:
    """`token`: what was drawn, with its logprob where asked for. `prompt`: one entry per target of the work.

    `error`: why none could be drawn; it ends the sequence. A sentence is for a failure, such as a model that gives no
    numbers.
    """

    token: int | None = None
    logprob: TokenLogprob | None = None
    prompt: tuple[TokenLogprob, ...] = ()
    error: str | Unsatisfiable | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """`work[i]` answers `plan.work[i]`; `kept[j]` is the rows per lane [lanes] that `plan.all_evictions[j]` left.

    `seconds`: where the time of the step went, by the runner's names of its parts.
    """

    work: tuple[WorkResult, ...]
    kept: tuple[Counts, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
