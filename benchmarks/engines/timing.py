"""From the moments at which tokens arrived to rates. All moments are seconds since the prompts were sent."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence


def window(arrivals: Sequence[Sequence[float]], new_tokens: int) -> tuple[float, float] | None:
    """When decoding alone was done: from the last sequence's first token on, until each brought `new_tokens` more.

    Before it some sequences still wait for their prompt to be read. None as long as it is not complete.
    """
    if not all(arrivals):
        return None
    start = max(moments[0] for moments in arrivals)
    end = start
    for moments in arrivals:
        last = bisect_right(moments, start) + new_tokens - 1
        if last >= len(moments):
            return None
        end = max(end, moments[last])
    return start, end


def decode_rate(arrivals: Sequence[Sequence[float]], new_tokens: int) -> float:
    """Tokens per second over all sequences within `window`. Raises ValueError if that is not complete."""
    found = window(arrivals, new_tokens)
    if found is None:
        raise ValueError("a sequence ended before all had decoded long enough")
    return len(arrivals) * new_tokens / (found[1] - found[0])


def first_token(arrivals: Sequence[Sequence[float]]) -> float:
    """Seconds to the first token, as a mean over the sequences."""
    return statistics.fmean(moments[0] for moments in arrivals)
