"""What makes a row worth keeping. A policy knows nothing of storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Self

from torch import Tensor

from paged_kv.calibration import Calibration
from paged_kv.observation import Observation
from paged_kv.plugins import load
from paged_kv.scoring import LinearScorer

LaneMode = Literal["uniform", "layer", "global", "profile"]
_TINY = 1e-30


@dataclass(frozen=True)
class ScoreView:
    """What a policy may see of one sequence: `rows` int64 [R] counts row numbers within a lane, oldest first.

    `kept` int64 [lanes]: rows each lane holds. `statistic` float32 [lanes, R]: what the policy's observation gathered,
    None without one; `written` float32 [lanes, R, scores]: what its scorer gave, None without one. `keep` is the rows
    per lane that will be left, as a mean; `seen` the tokens computed so far. `keys`, `values` float32
    [lanes, R, head_dim], zero behind a lane's end: for a policy that `reads_rows`, else None. Keys stand in
    the basis that they are stored in, see `Basis`: rotated, all alike, which changes neither lengths nor angles, or in
    few bits scaled as well, which does.
    """

    rows: Tensor
    kept: Tensor
    statistic: Tensor | None
    keep: int
    seen: int
    keys: Tensor | None = None
    values: Tensor | None = None
    written: Tensor | None = None

    @cached_property
    def age(self) -> Tensor:
        """How many rows of its lane are newer than each row, int64 [lanes, R]; negative behind a lane's end."""
        return self.kept.unsqueeze(-1) - 1 - self.rows

    @property
    def shares(self) -> Tensor:
        """The statistic as shares of its lane's sum, float32 [lanes, R]; 0 behind a lane's end."""
        assert self.statistic is not None
        held = self.statistic.masked_fill(self.age < 0, 0.0)
        return held / held.sum(dim=1, keepdim=True).clamp(min=_TINY)


@dataclass(frozen=True, slots=True)
class PolicyDefaults:
    """How a policy wants to be driven unless the user says otherwise; see `EvictionDriver` and `EvictionRules`."""

    sinks: int = 4
    recent: int = 32
    lanes: LaneMode = "uniform"
    pool: int = 1
    drop: float = 0.1
    ceiling: bool = False
    streaming: bool = False


class Policy(ABC):
    """Gives every row a score; higher is kept. Between equal scores the newer row is kept.

    `comparable`: a score means the same whichever sequence the row is of, so that sequences can compete by it.
    """

    evicts: ClassVar[bool] = True
    reads_rows: ClassVar[bool] = False
    comparable: ClassVar[bool] = False

    @property
    def defaults(self) -> PolicyDefaults:
        """How it wants to be driven unless the user says otherwise."""
        return PolicyDefaults()

    @property
    def observation(self) -> Observation | None:
        """What attention must note down for this policy; None if it needs nothing."""
        return None

    @property
    def scorer(self) -> LinearScorer | None:
        """What scores rows when they are written; None if nothing does."""
        return None

    @property
    def state_bytes(self) -> int:
        """Bytes that every row carries for this policy."""
        return notes.state_bytes if (notes := self.observation or self.scorer) else 0

    @abstractmethod
    def score(self, view: ScoreView) -> Tensor:
        """Scores float32 [lanes, R]; what stands behind a lane's end is ignored."""


class CalibratedPolicy(Policy):
    """A policy that is made for one model by what was measured on it."""

    @abstractmethod
    def calibrated(self, calibration: Calibration) -> Self:
        """This policy for the model that `calibration` is of."""


def load_policy(name: str) -> Policy:
    """The policy called `name` (a file in `paged_kv/policies`), as it is by default. Raises ValueError if none is."""
    policy: Policy = load("paged_kv.policies", name, "POLICY")
    return policy
