"""POST /v1/completions: the body."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator, ValidationInfo, field_validator

from server.protocol.fields import Count, Refused
from server.protocol.sampling import GenerationFields

MAX_PROMPTS = 128

Prompt = str | list[int]


def _as_prompts(value: Any) -> list[Prompt]:
    """The four shapes that OpenAI allows, as a list of prompts."""
    prompts = [value] if _is_prompt(value) and value != [] else value
    if isinstance(prompts, list) and 0 < len(prompts) <= MAX_PROMPTS and all(map(_is_prompt, prompts)):
        return prompts
    raise ValueError(
        f"must be a string, a list of token ids, or a list of 1 to {MAX_PROMPTS} strings or lists of token ids"
    )


def _is_prompt(value: Any) -> bool:
    # type(), since bool is an int
    return isinstance(value, str) or (isinstance(value, list) and set(map(type, value)) <= {int})


Prompts = Annotated[
    list[Prompt],
    PlainValidator(_as_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]


class CompletionRequest(GenerationFields):
    """One or more prompts to continue. `max_tokens` 0 with `echo` scores the prompt and adds nothing."""

    prompt: Prompts
    echo: bool = False
    max_tokens: Count = 16
    logprobs: Count | None = None
    add_special_tokens: bool = True
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: Refused = None

    @field_validator("max_tokens")
    @classmethod
    def _zero_only_scores(cls, value: int, info: ValidationInfo) -> int:
        if value == 0 and not info.data.get("echo"):
            raise ValueError('must be at least 1, unless "echo" is true')
        return value

    @field_validator("best_of")
    @classmethod
    def _no_hidden_choices(cls, value: int, info: ValidationInfo) -> int:
        if value > info.data.get("n", value):
            raise ValueError("choosing the best of more than n is not supported; remove best_of or lower it to n")
        return value
