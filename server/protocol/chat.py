"""POST /v1/chat/completions: the body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, FailFast, Field, ValidationInfo, field_validator, model_validator

from server.protocol.fields import INT32_MAX, Count, Ignored, Refused, RequestModel, TemplateKwargs
from server.protocol.sampling import GenerationFields
from server.protocol.tools import MAX_TOOLS, AnyToolChoice, MadeCall, Tool, ToolChoice, check_names


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
    tool_calls: Annotated[list[MadeCall], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.content and not self.tool_calls:
            raise ValueError("content is required, unless the message has tool_calls")
        return self

    @classmethod
    def assistant(cls, texts: Sequence[str], calls: Sequence[MadeCall]) -> ChatMessage | None:
        """A turn of the assistant's; None if it is empty."""
        parts = [TextPart(type="text", text=text) for text in texts]
        if parts and calls:
            return cls(role="assistant", content=parts, tool_calls=list(calls))
        if calls:
            return cls(role="assistant", tool_calls=list(calls))
        return cls(role="assistant", content=parts) if parts else None

    def for_template(self) -> dict[str, Any]:
        """What chat templates expect. They know "system" where OpenAI now says "developer"."""
        calls = [call.for_template() for call in self.tool_calls]
        optional = {"name": self.name, "tool_call_id": self.tool_call_id, "tool_calls": calls}
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
    def template_variables(self) -> dict[str, Any]:
        """What the template is given beside the conversation."""
        return self.chat_template_kwargs

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
    reasoning_effort: Annotated[str, Field(max_length=16)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS), FailFast()] = Field(default_factory=list)
    tool_choice: AnyToolChoice = Field(default_factory=lambda: ToolChoice(type="auto"))
    parallel_tool_calls: bool = True

    include_reasoning: Ignored = None
    verbosity: Ignored = None

    add_special_tokens: Refused = None
    audio: Refused = None
    documents: Refused = None
    echo: Refused = None
    function_call: Refused = None
    functions: Refused = None
    mm_processor_kwargs: Refused = None
    web_search_options: Refused = None

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int, info: ValidationInfo) -> int:
        if value > 0 and not info.data.get("logprobs"):
            raise ValueError('needs "logprobs": true beside it')
        return value

    @field_validator("tools")
    @classmethod
    def _no_name_twice(cls, value: list[Tool]) -> list[Tool]:
        check_names(value, None)
        return value

    @field_validator("tool_choice")
    @classmethod
    def _there_is_a_choice(cls, value: ToolChoice, info: ValidationInfo) -> ToolChoice:
        if "tools" in info.data:
            check_names(info.data["tools"], value)
        return value

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.must_call and self.has_form:
            raise ValueError("an answer that must be a call cannot have another form: remove one of both")
        return self

    @property
    def template_variables(self) -> dict[str, Any]:
        """See `TemplateFields`; templates of models that reason know the effort."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return effort | self.chat_template_kwargs

    @property
    def offers_tools(self) -> bool:
        """Whether the model is told of tools and may call them."""
        return bool(self.tools) and self.tool_choice.type != "none"

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be a call."""
        return self.offers_tools and self.tool_choice.type != "auto"
