"""The parameters that completions and chat share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from server.protocol.fields import (
    INT32_MAX,
    Count,
    KVBudget,
    LogitBias,
    Refused,
    RequestModel,
    StopStrings,
)


class StreamOptions(RequestModel):
    """`include_usage`: send the usage in a chunk of its own, the last before [DONE]."""

    include_usage: bool = False


class GenerationFields(RequestModel):
    """What can be asked for about any generation. OpenAI's names and ranges, vLLM's where OpenAI has none."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    min_tokens: Count = 0
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] = 1.0
    logit_bias: LogitBias = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopStrings = Field(default_factory=list)
    stop_token_ids: Annotated[list[Count], Field(max_length=128)] = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] = 0
    kv_policy: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    kv_budget: KVBudget | None = None
    stream: bool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)
    user: str | None = None

    allowed_token_ids: Refused = None
    bad_words: Refused = None
    grammar: Refused = None
    guided_choice: Refused = None
    guided_grammar: Refused = None
    guided_json: Refused = None
    guided_regex: Refused = None
    logits_processors: Refused = None
    prompt_embeds: Refused = None
    prompt_logprobs: Refused = None
    structured_outputs: Refused = None
    truncate_prompt_tokens: Refused = None
    use_beam_search: Refused = None

    response_format: dict[str, Any] = Field(default_factory=dict)

    @field_validator("stream_options")
    @classmethod
    def _only_in_streams(cls, value: StreamOptions, info: ValidationInfo) -> StreamOptions:
        if not info.data.get("stream"):
            raise ValueError('only streams have options; set "stream": true or remove this field')
        return value

    @field_validator("response_format")
    @classmethod
    def _free_text_only(cls, value: dict[str, Any]) -> dict[str, Any]:
        if value.get("type") != "text":
            raise ValueError('only {"type": "text"} is supported')
        return value
