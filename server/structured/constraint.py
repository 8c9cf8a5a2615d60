"""A grammar's state, as the sampler asks for it: which tokens may follow."""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from scheduler.request import ConstraintError

Words = npt.NDArray[np.int32]

_MOST_SECONDS = 1.0  # for one mask; usual ones take some 50 microseconds


class MatcherConstraint:
    """One choice's `scheduler.request.Constraint`. Owns its matcher; one thread at a time calls it.

    `helper`: where masks are worked out that can be foreseen. llguidance holds no Python lock meanwhile.
    """

    def __init__(self, matcher: LLMatcher, helper: Executor) -> None:
        self._matcher = matcher
        self._helper = helper
        self._foreseen: Future[Words] | None = None
        self._num_consumed = 0

    def foresee(self, output: tuple[int, ...]) -> None:
        """See `scheduler.request.Constraint`."""
        self._foreseen = self._helper.submit(self._mask, output)

    def allowed(self, output: tuple[int, ...]) -> Words:
        """See `scheduler.request.Constraint`."""
        foreseen, self._foreseen = self._foreseen, None
        return self._mask(output) if foreseen is None else foreseen.result()

    def _mask(self, output: tuple[int, ...]) -> Words:
        began = time.monotonic()
        if new := list(output[self._num_consumed :]):
            self._matcher.consume_tokens(new)
            self._num_consumed = len(output)
        mask = mask_of(self._matcher)
        if problem := problem_of(self._matcher):
            raise ConstraintError(f"the output cannot be kept in its form: {problem}")
        if time.monotonic() - began > _MOST_SECONDS:
            raise ConstraintError("the form of the output is too complex to be kept")
        return mask


class MatcherGrammar:
    """A compiled `scheduler.request.Grammar`; its matcher is never advanced, only copied.

    `first`: the ids that an output may begin with, as `Constraint.allowed` tells them.
    """

    def __init__(self, matcher: LLMatcher, helper: Executor, first: Words) -> None:
        self.first = first
        self._matcher = matcher
        self._helper = helper

    def begin(self) -> MatcherConstraint:
        """See `scheduler.request.Grammar`."""
        return MatcherConstraint(self._matcher.deep_copy(), self._helper)


def mask_of(matcher: LLMatcher) -> Words:
    """What `matcher` allows next, as `scheduler.request.Constraint.allowed` tells it."""
    return np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)


def problem_of(matcher: LLMatcher) -> str:
    """What is wrong with `matcher`, in one line; empty if all is well."""
    first, *_ = matcher.get_error().replace("<non-verbose/>", "").strip().split("\n")
    return first[:200]
