"""The parameters that completions and chat share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from server.protocol.fields import (
    INT32_MAX,
    Count,
    Ignored,
    KVBudget,
    LogitBias,
    Moved,
    Refused,
    RequestModel,
    StopStrings,
    TokenIds,
)
from server.protocol.structured import OutputFields


class StreamOptions(RequestModel):
    """`include_usage`: send the usage in a chunk of its own, the last before [DONE]; `continuous`: in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Ignored = None


class GenerationFields(OutputFields):
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
    allowed_token_ids: Annotated[TokenIds, Field(max_length=300_000)] = Field(default_factory=list)
    bad_words: StopStrings = Field(default_factory=list)
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopStrings = Field(default_factory=list)
    stop_token_ids: Annotated[TokenIds, Field(max_length=128)] = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: Count | None = None
    logprob_token_ids: Annotated[TokenIds, Field(max_length=128)] = Field(default_factory=list)
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    truncation_side: Literal["left", "right"] = "left"
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] = 0
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    kv_policy: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    kv_budget: KVBudget | None = None
    stream: bool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)

    user: str | None = None
    length_penalty: Ignored = None
    metadata: Ignored = None
    moderation: Refused = None
    prediction: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    request_id: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    spaces_between_special_tokens: Ignored = None
    store: Ignored = None

    grammar: Moved = None
    guided_choice: Moved = None
    guided_grammar: Moved = None
    guided_json: Moved = None
    guided_regex: Moved = None
    json_schema: Moved = None
    regex: Moved = None
    logits_processors: Refused = None
    prompt_embeds: Refused = None
    repetition_detection: Refused = None
    use_beam_search: Refused = None
    vllm_xargs: Refused = None

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _leaves_something(cls, value: int) -> int:
        if value == 0:
            raise ValueError("must leave at least one token of the prompt; -1 leaves as many as fit")
        return value

    @field_validator("stream_options")
    @classmethod
    def _only_in_streams(cls, value: StreamOptions, info: ValidationInfo) -> StreamOptions:
        if not info.data.get("stream"):
            raise ValueError('only streams have options; set "stream": true or remove this field')
        return value
