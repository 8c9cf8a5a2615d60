"""How running sequences will grow, so that no more enter than the pool can hold later on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from scheduler.budget import SequenceBudget
from scheduler.memory import KVMemory
from scheduler.sequence import Sequence

_STEPS = np.arange(0, 1025, 64)  # from now on; what lies further ahead is left to the memory ladder
_REMEMBERED = 32

Pages = NDArray[np.float64]  # [steps ahead that are looked at]


class Forecast:
    """Foretells the pages of sequences that share the pool. Owned by the scheduler, which notes all that end.

    A sequence grows by a token a step, until it has all the tokens it asked for, or as many as the longest of those
    that ended lately, if that comes first. One that is never evicted counts as it stands: it asks for its whole
    context, seldom needs it, and leaves no rows to others when it is preempted.
    """

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        self._lengths: deque[int] = deque(maxlen=_REMEMBERED)

    def note_end(self, sequence: Sequence) -> None:
        """Learn from the length of `sequence`, which is over."""
        self._lengths.append(sequence.num_generated)

    def pages(self, sequences: Iterable[Sequence], counts: Iterable[float]) -> Pages:
        """The pages of `sequences` together once those that can are shrunk; `counts`: what each one counts now."""
        pairs = list(zip(sequences, counts, strict=True))
        whole = sum(count for sequence, count in pairs if sequence.budget is None)
        lines = [self._line(sequence, sequence.budget) for sequence, _ in pairs if sequence.budget is not None]
        if not lines:
            return np.full(_STEPS.size, float(whole))
        lengths, ends, least, shares = np.array(lines).T[..., np.newaxis]
        is_over = lengths + _STEPS >= ends + _STEPS[1]  # until the next point its pages are not counted on by others
        lengths = np.minimum(lengths + _STEPS, ends)
        rows = np.minimum(lengths, np.maximum(least, shares * lengths))
        shrunk: Pages = (self._memory.likely(rows) * ~is_over).sum(axis=0)
        return shrunk + whole

    def _line(self, sequence: Sequence, budget: SequenceBudget) -> tuple[float, float, float, float]:
        """Tokens now and at the end; rows per lane at least, and as a share of the tokens."""
        length = len(sequence.tokens)
        knows = len(self._lengths) == _REMEMBERED
        more = max(self._lengths) - sequence.num_generated if knows else _STEPS[-1]
        end = min(sequence.max_len, length + max(more, _STEPS[1]))
        return length, end, *budget.middle()
