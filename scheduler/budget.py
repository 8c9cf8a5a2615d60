"""How many rows a sequence may keep, and when it is time to compress it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """What the scheduler must know of an eviction policy; all row counts are per lane, as a mean over lanes.

    `min_rows`: no budget goes below it, so that what a compression leaves covers the protected rows. `drop`: rows
    dropped at once, as a share of the budget. `ceiling`: the budget is what a sequence may reach (Scissorhands,
    Algorithm 1); otherwise it is what a compression leaves. `streaming`: compress while the prompt is still being read,
    instead of at its end.
    """

    min_rows: int
    drop: float = 0.25
    ceiling: bool = False
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class SequenceBudget:
    """The rules applied to one sequence's budget: a float is a share of the tokens seen, an int rows per lane."""

    rules: EvictionRules
    size: float | int

    def low(self, seen: int) -> int:
        """Rows per lane that a compression leaves, after `seen` tokens."""
        rows = self._rows(seen)
        return rows + 1 - self._drop(rows) if self.rules.ceiling else rows

    def high(self, seen: int) -> int:
        """Rows per lane above which a sequence is compressed, after `seen` tokens."""
        rows = self._rows(seen)
        return rows if self.rules.ceiling else rows + self._drop(rows)

    def middle(self) -> tuple[float, float]:
        """Between low and high mark: rows per lane at least, and as a share of the tokens seen."""
        factor = 1 - self.rules.drop / 2 if self.rules.ceiling else 1 + self.rules.drop / 2
        if isinstance(self.size, int):
            return max(self.size, self.rules.min_rows) * factor, 0.0
        return self.rules.min_rows * factor, self.size * factor

    def _rows(self, seen: int) -> int:
        wanted = self.size if isinstance(self.size, int) else math.ceil(self.size * seen)
        return max(wanted, self.rules.min_rows)

    def _drop(self, rows: int) -> int:
        return max(1, math.floor(self.rules.drop * rows))
