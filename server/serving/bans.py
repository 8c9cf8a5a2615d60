"""Requests that exclude what they ask for, as far as that shows before the first token."""

from __future__ import annotations

from collections.abc import Sequence

from models.adjustments import permitted
from scheduler.plan import SampleOrder
from scheduler.request import SamplingParams
from scheduler.stopping import end_tokens
from server.errors import unsatisfiable
from server.structured.constraint import MatcherGrammar


def check_bans(
    params: SamplingParams, eos_token_ids: Sequence[int], vocab_size: int, grammar: MatcherGrammar | None
) -> None:
    """Refuse bans that leave no first token, or none that could end an output that must have a form: an ApiError."""
    param = "allowed_token_ids" if params.allowed_token_ids else "bad_words"
    if not (params.allowed_token_ids or params.bad_words) or params.max_tokens == 0:
        return
    early = end_tokens(params, tuple(eos_token_ids)) if params.min_tokens else ()
    order = SampleOrder(params, choice=0, step=0, banned=early)
    if not permitted(order, vocab_size, None if grammar is None else grammar.first).any():
        rivals = "what else is banned" if grammar is None else "the form of the output"
        raise unsatisfiable(f"{param}: together with {rivals} this leaves no token to begin with", param=param)
    if grammar is not None and not permitted(order, vocab_size, None)[list(eos_token_ids)].any():
        ends = " or ".join(map(str, eos_token_ids))
        message = f"{param}: an output that must have a form needs an end token to be complete; allow {ends}"
        raise unsatisfiable(message, param=param)
