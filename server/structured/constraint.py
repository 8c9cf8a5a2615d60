"""A grammar's state, as the sampler asks for it: which tokens may follow."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from scheduler.request import ConstraintError

_MOST_SECONDS = 1.0  # for one mask; usual ones take some 50 microseconds


class MatcherConstraint:
    """One choice's `scheduler.request.Constraint`. Owns its matcher; one thread at a time calls it."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._num_consumed = 0

    def allowed(self, output: tuple[int, ...]) -> npt.NDArray[np.int32]:
        """See `scheduler.request.Constraint`."""
        began = time.monotonic()
        if new := list(output[self._num_consumed :]):
            self._matcher.consume_tokens(new)
            self._num_consumed = len(output)
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
        if problem := problem_of(self._matcher):
            raise ConstraintError(f"the output cannot be kept in its form: {problem}")
        if time.monotonic() - began > _MOST_SECONDS:
            raise ConstraintError("the form of the output is too complex to be kept")
        return mask


class MatcherGrammar:
    """A compiled `scheduler.request.Grammar`; its matcher is never advanced, only copied."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def begin(self) -> MatcherConstraint:
        """See `scheduler.request.Grammar`."""
        return MatcherConstraint(self._matcher.deep_copy())


def problem_of(matcher: LLMatcher) -> str:
    """What is wrong with `matcher`, in one line; empty if all is well."""
    first, *_ = matcher.get_error().replace("<non-verbose/>", "").strip().split("\n")
    return first[:200]
