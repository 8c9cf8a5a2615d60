"""When a sequence is at its end. Stop strings are the edge's business: the engine speaks ids."""

from __future__ import annotations

from scheduler.request import SamplingParams
from scheduler.sequence import Ending, Sequence


def end_tokens(params: SamplingParams, eos_token_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The ids that may end a sequence with these parameters."""
    return params.stop_token_ids if params.ignore_eos else params.stop_token_ids + eos_token_ids


def ending_of(sequence: Sequence, eos_token_ids: tuple[int, ...]) -> Ending | None:
    """Why the newest token of `sequence` is its last; None if it is not."""
    params = sequence.request.params
    newest = sequence.tokens[-1]
    if sequence.num_generated >= max(1, params.min_tokens) and newest in end_tokens(params, eos_token_ids):
        return Ending("stop", newest if newest in params.stop_token_ids else None)
    if len(sequence.tokens) >= sequence.max_len:
        return Ending("length")
    return None
