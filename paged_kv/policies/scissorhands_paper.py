"""Scissorhands exactly as published: Algorithms 1 and 2 of arXiv 2305.17118 with the settings of its experiments."""

from __future__ import annotations

from dataclasses import dataclass

from paged_kv.policies.scissorhands import Scissorhands
from paged_kv.policy import PolicyDefaults


@dataclass(frozen=True, slots=True)
class ScissorhandsPaper(Scissorhands):
    """w = 400 (to the step), r = 10, m = B / 2, no sinks, equal counts in all lanes.

    The budget is a ceiling from the first token on.
    """

    counters: int | None = None

    @property
    def defaults(self) -> PolicyDefaults:
        """See `Policy.defaults`."""
        return PolicyDefaults(sinks=0, recent=10, lanes="uniform", drop=0.5, ceiling=True, streaming=True)


POLICY = ScissorhandsPaper()
