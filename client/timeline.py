"""When each output token of a request came: the one list that token latencies are derived from.

An event may carry several tokens, and a server may make tokens that it never shows, so events are not tokens. The
number of tokens comes from the server's usage; the gap before an event is shared evenly by the tokens in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Literal

import numpy as np
import numpy.typing as npt

from client.record import Arrival, RequestRecord

TokenCounter = Callable[[str], int]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """`times` [tokens], ascending, in seconds since the run began.

    `hides` says that the server counted tokens before its first text that the text cannot hold. They are laid
    between sending and that text, so decode speed is not overstated; the time to first token is an upper bound.
    """

    times: FloatArray
    counted_by: Literal["usage", "tokenizer", "events"]
    hides: bool


def token_timeline(record: RequestRecord, count_tokens: TokenCounter | None = None) -> Timeline:
    """The timeline of a finished request. `count_tokens` helps where the server's usage is missing or hides tokens."""
    arrivals = record.arrivals
    continuous = arrivals[0].counted is not None
    counted_by: Literal["usage", "tokenizer", "events"] = "usage"
    total = record.completion_tokens
    if total is None:
        counted_by = "tokenizer" if count_tokens else "events"
        total = max(1, count_tokens(record.text)) if count_tokens else len(arrivals)

    if continuous:
        shares = _from_counts(arrivals, total)
        hides = _exceeds(shares[0], arrivals[0].text, count_tokens)
    else:
        hides = _exceeds(total, record.text, count_tokens)
        visible = total
        if hides:
            visible = max(1, count_tokens(record.text)) if count_tokens else len(arrivals)
        shares = _spread(visible, arrivals)
        shares[0] += total - visible
    start = record.sent if hides else arrivals[0].at
    return Timeline(_lay_out(start, [arrival.at for arrival in arrivals], shares), counted_by, hides)


def _exceeds(tokens: int, text: str, count_tokens: TokenCounter | None) -> bool:
    """Whether `tokens` cannot all be in `text`. Without a tokenizer: a token shows at least one byte.

    One token more (the end of sequence) or a tenth (text tokenised anew) proves nothing.
    """
    visible = count_tokens(text) if count_tokens else len(text.encode())
    return tokens - visible > max(1, tokens // 10)


def _from_counts(arrivals: tuple[Arrival, ...], total: int) -> list[int]:
    """Tokens per event from the server's running count; what the final usage adds belongs to the last event."""
    counts = [*accumulate((arrival.counted or 0 for arrival in arrivals), max)]
    counts[-1] = max(total, counts[-1])
    return _steps(counts)


def _spread(total: int, arrivals: tuple[Arrival, ...]) -> list[int]:
    """Tokens per event by length of text: one for each event, the rest in proportion to its bytes."""
    events = len(arrivals)
    if total < events:
        return _steps([ceil((i + 1) * total / events) for i in range(events)])
    sizes = [*accumulate(len(arrival.text.encode()) for arrival in arrivals)]
    return _steps([i + 1 + round(size / sizes[-1] * (total - events)) for i, size in enumerate(sizes)])


def _steps(counts: list[int]) -> list[int]:
    return [after - before for before, after in pairwise([0, *counts])]


def _lay_out(start: float, ats: list[float], shares: list[int]) -> FloatArray:
    """Spreads each event's tokens evenly over the gap before it, the last one at the event itself."""
    gaps = zip(pairwise([start, *ats]), shares, strict=True)
    return np.concatenate([np.linspace(before, at, share + 1)[1:] for (before, at), share in gaps])
