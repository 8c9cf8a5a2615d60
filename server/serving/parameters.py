"""From a checked body to the engine's sampling parameters: what needs the model or the settings to be judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scheduler.request import SamplingParams
from server.errors import ApiError
from server.protocol.sampling import GenerationFields
from server.sampling_defaults import SamplingDefaults


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model and the operator allow, and how they draw where a request does not say."""

    max_model_len: int
    vocab_size: int
    max_logprobs: int
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)


def sampling_params(
    body: GenerationFields,
    limits: Limits,
    *,
    seed: int,
    num_prompt_tokens: int,
    max_tokens: int | None,
    logprobs: int | None,
    score_prompt: bool = False,
    bad_words: Sequence[tuple[int, ...]] = (),
) -> SamplingParams:
    """The engine's view of `body`. `max_tokens` is an upper bound, cut to what is left of the context; None takes that.

    `seed` is for a body that brings none, `bad_words` are its bad words as ids. Raises ApiError for what this model or
    server cannot do.
    """
    room = limits.max_model_len - num_prompt_tokens
    most = room if max_tokens is None else min(max_tokens, room)
    if body.min_tokens > most:
        raise ApiError(
            f"min_tokens: {body.min_tokens} is more than the {most} tokens that may come; lower it or raise max_tokens",
            param="min_tokens",
        )
    for param in ("stop_token_ids", "logit_bias", "allowed_token_ids", "logprob_token_ids"):
        _check_ids(param, getattr(body, param), limits.vocab_size)
    drawing = limits.defaults.of(body)
    scored = [body.prompt_logprobs, logprobs if score_prompt else None]
    return SamplingParams(
        max_tokens=most,
        min_tokens=body.min_tokens,
        temperature=drawing["temperature"],
        top_p=drawing["top_p"],
        top_k=max(0, drawing["top_k"]),
        min_p=drawing["min_p"],
        seed=seed if body.seed is None else body.seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=drawing["repetition_penalty"],
        logit_bias=tuple(body.logit_bias.items()),
        stop_token_ids=tuple(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=max((count for count in scored if count is not None), default=None),
        allowed_token_ids=tuple(body.allowed_token_ids),
        bad_words=tuple(bad_words),
        logprob_token_ids=tuple(body.logprob_token_ids),
    )


def check_form(body: GenerationFields) -> None:
    """Refuse what cannot go with a form that the output must have: it ends when it is complete."""
    for param, value in (("min_tokens", body.min_tokens), ("ignore_eos", body.ignore_eos)):
        if value:
            message = f"{param}: an output that must have a form ends when it is complete; remove one of both"
            raise ApiError(message, param=param)


def check_logprobs(count: int | None, limits: Limits, param: str) -> None:
    """Refuse more alternatives than the operator allows."""
    if count is not None and count > limits.max_logprobs:
        raise ApiError(f"{param}: this server gives at most {limits.max_logprobs} alternatives", param=param)


def _check_ids(param: str, ids: Iterable[int], vocab_size: int) -> None:
    if any(token >= vocab_size for token in ids):
        raise ApiError(f"{param}: token ids run from 0 to {vocab_size - 1} for this model", param=param)
