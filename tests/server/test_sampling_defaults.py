"""What a request does not say of sampling, the model's generation_config.json does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from scheduler.request import GenerationRequest, SamplingParams
from scheduler.stream import TokenStream
from server.cli import engine_options, parse
from server.sampling_defaults import SamplingDefaults
from tests.server.stack import CHAT_HI, Json, Stack, succeeded

StackFactory = Callable[..., Stack]
LLAMA = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [5], "top_k": None}


def params_of(stack: Stack, path: str, body: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> SamplingParams:
    """What the engine is asked for when `body` is sent."""
    asked: list[SamplingParams] = []
    submit = stack.engine.submit

    def noting(request: GenerationRequest) -> TokenStream:
        asked.append(request.params)
        return submit(request)

    monkeypatch.setattr(stack.engine, "submit", noting)
    succeeded(stack.post(path, **body))
    return asked[0]


BODIES: list[tuple[str, Json]] = [
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/chat/completions", {"messages": CHAT_HI}),
    ("/v1/messages", {"messages": CHAT_HI, "model": "tiny", "max_tokens": 5}),
    ("/v1/responses", {"input": "hi"}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_what_a_request_does_not_say_the_model_does(
    stack: StackFactory, monkeypatch: pytest.MonkeyPatch, path: str, body: Json
) -> None:
    recommended = SamplingDefaults.recommended(LLAMA)
    params = params_of(stack(sampling=recommended), path, body, monkeypatch)
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.9, 0)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_what_a_request_says_counts(
    stack: StackFactory, monkeypatch: pytest.MonkeyPatch, path: str, body: Json
) -> None:
    recommended = SamplingDefaults.recommended(LLAMA | {"repetition_penalty": 1.1})
    said = {"temperature": 1.0, "top_p": None}
    params = params_of(stack(sampling=recommended), path, body | said, monkeypatch)
    assert (params.temperature, params.top_p, params.repetition_penalty) == (1.0, 0.9, 1.1)


def test_a_response_tells_what_counted(stack: StackFactory) -> None:
    answer = succeeded(stack(sampling=SamplingDefaults(temperature=0.25)).post("/v1/responses", input="hi", top_p=0.5))
    assert (answer["temperature"], answer["top_p"]) == (0.25, 0.5)


@pytest.mark.parametrize("wrong", [{"temperature": 7.0}, {"top_p": "0.9"}, {"top_k": 1.5}, {"repetition_penalty": 0.0}])
def test_what_no_request_could_ask_for_is_told_by_name(wrong: Json) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))}: "):
        SamplingDefaults.recommended(wrong)


@pytest.mark.parametrize(("given", "expected"), [([], "auto"), (["none"], "none"), (["vllm"], "none")])
def test_the_option_has_vllms_name(given: list[str], expected: str) -> None:
    flags = ["--generation-config", *given] if given else []
    assert engine_options(parse(flags, {})).generation_config == expected
