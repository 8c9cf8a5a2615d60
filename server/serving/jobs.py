"""From a body to a job: which prompts, which parameters, which text."""

from __future__ import annotations

import uuid

from scheduler.request import GenerationRequest, SamplingParams
from server.choice_text import TextOptions, TokenBytes
from server.errors import ApiError
from server.protocol.chat import ChatRequest
from server.protocol.completions import CompletionRequest
from server.protocol.sampling import GenerationFields
from server.services import Services
from server.serving.generation import Job, Part
from server.serving.parameters import Limits, check_logprobs, sampling_params


async def completion_job(body: CompletionRequest, services: Services) -> Job:
    """One part per prompt. Raises ApiError for what cannot be served."""
    limits = _limits(services)
    check_logprobs(body.logprobs, limits, "logprobs")
    _check_choices(len(body.prompt) * body.n, services)
    prompts = await services.prompts.completion(body.prompt, add_special_tokens=body.add_special_tokens)
    parts = []
    for prompt, ids in zip(body.prompt, prompts, strict=True):
        params = sampling_params(
            body,
            limits,
            seed=services.draw_seed(),
            num_prompt_tokens=len(ids),
            max_tokens=body.max_tokens,
            logprobs=body.logprobs,
            score_prompt=body.echo,
        )
        echo = await services.prompts.echo(prompt, ids) if body.echo else None
        parts.append(Part(_request(body, ids, params), echo))
    return _job(body, services, parts, pieces=body.logprobs is not None)


async def chat_job(body: ChatRequest, services: Services) -> Job:
    """One part. Raises ApiError for what cannot be served, ChatTemplateError for what the template refuses."""
    limits = _limits(services)
    check_logprobs(body.top_logprobs, limits, "top_logprobs")
    ids = await services.prompts.chat(body.messages, body)
    params = sampling_params(
        body,
        limits,
        seed=services.draw_seed(),
        num_prompt_tokens=len(ids),
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return _job(body, services, [Part(_request(body, ids, params))], pieces=body.logprobs)


def _limits(services: Services) -> Limits:
    return Limits(services.engine.max_model_len, services.tokenizer.vocab_size, services.settings.max_logprobs)


def _check_choices(num_choices: int, services: Services) -> None:
    if num_choices > services.settings.max_choices:
        most = services.settings.max_choices
        raise ApiError(f"n: {num_choices} choices in all are more than the {most} allowed in one request", param="n")


def _request(body: GenerationFields, ids: tuple[int, ...], params: SamplingParams) -> GenerationRequest:
    return GenerationRequest(
        request_id=uuid.uuid4().hex,
        prompt=ids,
        params=params,
        n=body.n,
        priority=body.priority,
        kv_policy=body.kv_policy,
        kv_budget=body.kv_budget,
    )


def _job(body: GenerationFields, services: Services, parts: list[Part], *, pieces: bool) -> Job:
    options = TextOptions(
        stop=tuple(body.stop),
        include_stop=body.include_stop_str_in_output,
        min_tokens=body.min_tokens,
        pieces=pieces,
    )
    return Job(tuple(parts), options, TokenBytes(services.tokenizer, skip_special=body.skip_special_tokens))
