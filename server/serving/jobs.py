"""From a body to a job: which prompts, which parameters, which text."""

from __future__ import annotations

import uuid
from collections.abc import Collection

from scheduler.request import GenerationRequest, Grammar, SamplingParams
from server.choice_text import TextOptions, TokenBytes
from server.errors import ApiError
from server.protocol.chat import ChatRequest
from server.protocol.completions import CompletionRequest
from server.protocol.sampling import GenerationFields
from server.request_id import REQUEST_ID
from server.services import Services
from server.serving.bans import check_bans
from server.serving.generation import Job, Part
from server.serving.parameters import Limits, check_form, check_logprobs, sampling_params
from server.serving.prompts import ToolOffer
from server.serving.tool_use import ToolUse
from server.structured.constraint import MatcherGrammar
from server.structured.forms import Form, form_of


async def completion_job(body: CompletionRequest, services: Services) -> Job:
    """One part per prompt. Raises ApiError for what cannot be served."""
    limits = _limits(services)
    check_logprobs(body.logprobs, limits, "logprobs")
    _check(body, limits, logprobs=body.logprobs is not None)
    _check_choices(len(body.prompt) * body.n, services)
    truncation = services.prompts.truncation(body.truncate_prompt_tokens, body.truncation_side, body.max_tokens)
    prompts = await services.prompts.completion(
        body.prompt, add_special_tokens=body.add_special_tokens, truncation=truncation
    )
    bad_words = await services.prompts.bad_words(body.bad_words)
    grammar = await _grammar(body, form_of(body), services)
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
            bad_words=bad_words,
        )
        check_bans(params, services.engine.eos_token_ids, services.tokenizer.vocab_size, grammar)
        shown = prompt if truncation is None else list(ids)
        echo = await services.prompts.echo(shown, ids) if body.echo else None
        parts.append(Part(_request(body, ids, params, grammar), echo))
    return _job(body, services, parts, pieces=body.logprobs is not None)


async def chat_job(body: ChatRequest, services: Services, use: ToolUse | None = None) -> Job:
    """One part. Raises ApiError for what cannot be served, ChatTemplateError for what the template refuses."""
    limits = _limits(services)
    check_logprobs(body.top_logprobs, limits, "top_logprobs")
    _check(body, limits, logprobs=body.logprobs)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    truncation = services.prompts.truncation(body.truncate_prompt_tokens, body.truncation_side, max_tokens)
    ids = await services.prompts.chat(body.messages, body, offer_of(use), truncation)
    form = form_of(body) if use is None or use.forced is None else use.forced
    params = sampling_params(
        body,
        limits,
        seed=services.draw_seed(),
        num_prompt_tokens=len(ids),
        max_tokens=max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        bad_words=await services.prompts.bad_words(body.bad_words),
    )
    grammar = await _grammar(body, form, services)
    check_bans(params, services.engine.eos_token_ids, services.tokenizer.vocab_size, grammar)
    part = Part(_request(body, ids, params, grammar))
    return _job(body, services, [part], pieces=body.logprobs, kept=() if use is None else use.family.marks)


def offer_of(use: ToolUse | None) -> ToolOffer | None:
    """What the template is told of tools."""
    return None if use is None else ToolOffer(tuple(tool.function.for_template() for tool in use.tools), use.form)


async def _grammar(body: GenerationFields, form: Form | None, services: Services) -> MatcherGrammar | None:
    if form is None:
        return None
    check_form(body)
    return await services.grammars.compile(form)


def _limits(services: Services) -> Limits:
    settings = services.settings
    return Limits(
        services.engine.max_model_len, services.tokenizer.vocab_size, settings.max_logprobs, settings.sampling
    )


def _check(body: GenerationFields, limits: Limits, *, logprobs: bool) -> None:
    check_logprobs(body.prompt_logprobs, limits, "prompt_logprobs")
    if body.prompt_logprobs is not None and body.stream:
        message = "prompt_logprobs: a stream does not tell them; remove this field or stream"
        raise ApiError(message, param="prompt_logprobs")
    if body.logprob_token_ids and not logprobs:
        raise ApiError("logprob_token_ids: needs logprobs beside it", param="logprob_token_ids")


def _check_choices(num_choices: int, services: Services) -> None:
    if num_choices > services.settings.max_choices:
        most = services.settings.max_choices
        raise ApiError(f"n: {num_choices} choices in all are more than the {most} allowed in one request", param="n")


def _request(
    body: GenerationFields, ids: tuple[int, ...], params: SamplingParams, grammar: Grammar | None
) -> GenerationRequest:
    return GenerationRequest(
        request_id=uuid.uuid4().hex,
        prompt=ids,
        params=params,
        n=body.n,
        priority=body.priority,
        kv_policy=body.kv_policy,
        kv_budget=body.kv_budget,
        grammar=grammar,
        cache_salt=body.cache_salt,
        sender_id=REQUEST_ID.get(),
    )


def _job(
    body: GenerationFields, services: Services, parts: list[Part], *, pieces: bool, kept: Collection[str] = ()
) -> Job:
    options = TextOptions(
        stop=tuple(body.stop),
        include_stop=body.include_stop_str_in_output,
        min_tokens=body.min_tokens,
        pieces=pieces or body.return_token_ids,
    )
    token_bytes = TokenBytes(services.tokenizer, skip_special=body.skip_special_tokens, kept=kept)
    shows_prompt = body.return_token_ids or body.prompt_logprobs is not None
    return Job(tuple(parts), options, token_bytes, shows_prompt)
