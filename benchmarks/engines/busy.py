"""How much of the machine's time went to work that is not ours."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_IDLE = (3, 4)  # of the fields in the first line of /proc/stat: idle, waiting for disks
_COUNTED = 8  # the fields behind them are counted in earlier ones


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds of all CPUs together since the machine started: in all, not idle, and used by our ended children."""

    total: float
    busy: float
    own: float

    @staticmethod
    def now() -> CpuTime:
        """Reads /proc/stat. `own` counts children, and theirs, once they have been waited for."""
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1 : 1 + _COUNTED]]
        tick = os.sysconf("SC_CLK_TCK")
        total = sum(fields) / tick
        times = os.times()
        own = times.children_user + times.children_system
        return CpuTime(total, total - sum(fields[place] for place in _IDLE) / tick, own)


def taken_by_others(before: CpuTime, after: CpuTime) -> float:
    """The share of all CPU time between two moments that neither was idle nor ours, 0 to 1."""
    others = (after.busy - before.busy) - (after.own - before.own)
    return max(0.0, others) / (after.total - before.total)
