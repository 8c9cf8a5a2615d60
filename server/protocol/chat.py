"""POST /v1/chat/completions: the body."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, FailFast, Field, ValidationInfo, field_validator, model_validator

from server.protocol.fields import INT32_MAX, Count, Refused, RequestModel, TemplateKwargs
from server.protocol.sampling import GenerationFields


class TextPart(RequestModel):
    """One piece of a message. There is no other kind: the models read text only."""

    type: Literal["text"]
    text: str


def _as_parts(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    return value


Content = Annotated[
    list[TextPart],
    Field(min_length=1, max_length=1024),
    FailFast(),
    BeforeValidator(_as_parts, json_schema_input_type=str | list[TextPart]),
]


class ChatMessage(RequestModel):
    """A turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content = Field(default_factory=list)
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[dict[str, Any]], Field(max_length=128)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.content and not self.tool_calls:
            raise ValueError("content is required, unless the message has tool_calls")
        return self

    def for_template(self) -> dict[str, Any]:
        """What chat templates expect. They know "system" where OpenAI now says "developer"."""
        optional = {"name": self.name, "tool_call_id": self.tool_call_id, "tool_calls": self.tool_calls}
        return {
            "role": "system" if self.role == "developer" else self.role,
            "content": "\n".join(part.text for part in self.content),
            **{key: value for key, value in optional.items() if value},
        }


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=4096), FailFast()]


class TemplateFields(RequestModel):
    """How the chat template renders a conversation."""

    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)
    chat_template: Refused = None

    @field_validator("add_generation_prompt")
    @classmethod
    def _one_ending(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("continue_final_message"):
            raise ValueError("a message that is continued cannot be followed by a new turn; leave this field out")
        return value

    @property
    def opens_a_turn(self) -> bool:
        """Whether the prompt ends with the opening of the assistant's turn."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt


class ChatRequest(TemplateFields, GenerationFields):
    """A conversation to continue."""

    messages: Messages
    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    logprobs: bool = False
    top_logprobs: Count | None = None
    modalities: list[Literal["text"]] = Field(default_factory=list)
    tool_choice: Literal["none", "auto"] = "auto"
    tools: Refused = None

    add_special_tokens: Refused = None
    audio: Refused = None
    documents: Refused = None
    echo: Refused = None
    functions: Refused = None
    web_search_options: Refused = None

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int, info: ValidationInfo) -> int:
        if value > 0 and not info.data.get("logprobs"):
            raise ValueError('needs "logprobs": true beside it')
        return value

    @field_validator("tools", mode="before")
    @classmethod
    def _never_called(cls, value: Any, info: ValidationInfo) -> Any:
        return None if info.data.get("tool_choice") == "none" else value
