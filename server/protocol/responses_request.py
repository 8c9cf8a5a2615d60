"""POST /v1/responses: the body."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field, field_validator

from server.protocol.chat import ChatMessage, TextPart
from server.protocol.fields import INT32_MAX, Count, Ignored, Refused, RequestModel
from server.protocol.structured import NamedSchema, ResponseFormat, Schema
from server.protocol.tools import (
    MAX_TOOLS,
    CalledFunction,
    Function,
    FunctionChoice,
    FunctionName,
    MadeCall,
    Tool,
    ToolChoice,
)

LOGPROBS = "message.output_text.logprobs"
ItemId = Annotated[str, Field(max_length=256)]


def _as_items(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if isinstance(value, list):  # messages need not say that they are some
        return [{"type": "message", **item} if isinstance(item, dict) and "role" in item else item for item in value]
    return value


def _as_texts(value: Any) -> Any:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


class InputText(RequestModel):
    """A piece of text."""

    type: Literal["input_text", "output_text", "text"]
    text: str

    def as_part(self) -> TextPart:
        """The same in a chat."""
        return TextPart(type="text", text=self.text)


Texts = Annotated[
    list[InputText],
    Field(max_length=1024),
    BeforeValidator(_as_texts, json_schema_input_type=str | list[InputText]),
]


class InputMessage(RequestModel):
    """A turn."""

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts
    id: Ignored = None
    status: Ignored = None

    def as_chat(self) -> ChatMessage:
        """The same in a chat."""
        return ChatMessage(role=self.role, content=[text.as_part() for text in self.content])


class InputCall(RequestModel):
    """A call that the assistant made."""

    type: Literal["function_call"]
    call_id: ItemId
    name: FunctionName
    arguments: str
    id: Ignored = None
    status: Ignored = None

    def as_call(self) -> MadeCall:
        """The same in a chat."""
        return MadeCall(id=self.call_id, function=CalledFunction(name=self.name, arguments=self.arguments))


class InputResult(RequestModel):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: ItemId
    output: Texts
    id: Ignored = None
    status: Ignored = None

    def as_chat(self) -> ChatMessage:
        """The same in a chat."""
        parts = [text.as_part() for text in self.output] or [TextPart(type="text", text="")]
        return ChatMessage(role="tool", content=parts, tool_call_id=self.call_id)


class InputReasoning(RequestModel):
    """What an assistant thought; models here are not told of it again."""

    type: Literal["reasoning"]


InputItem = Annotated[
    InputMessage | InputCall | InputResult | InputReasoning,
    Field(discriminator="type"),
]


class ResponsesTool(RequestModel):
    """A function. Tools that OpenAI's own servers run do not exist here."""

    type: Literal["function"]
    name: FunctionName
    description: Annotated[str, Field(max_length=16 * 1024)] = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool = False

    def as_tool(self) -> Tool:
        """The same in a chat. Raises ValidationError."""
        function = Function(name=self.name, description=self.description, parameters=self.parameters)
        return Tool(type="function", function=function)


class ResponsesToolChoice(RequestModel):
    """Whether a call may come, must come, or must be of one function."""

    type: Literal["none", "auto", "required", "function"]
    name: FunctionName | None = None

    def as_choice(self) -> ToolChoice:
        """The same in a chat. Raises ValidationError."""
        return ToolChoice(type=self.type, function=None if self.name is None else FunctionChoice(name=self.name))


class TextFormat(RequestModel):
    """Free text, any JSON object, or JSON that a schema describes."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    description: Ignored = None
    strict: Ignored = None

    def as_format(self) -> ResponseFormat:
        """The same in a chat. Raises ValidationError."""
        schema = None
        if self.type == "json_schema":
            schema = NamedSchema.model_validate({"name": self.name, "schema": self.schema_})
        return ResponseFormat(type=self.type, json_schema=schema)


class TextOptions(RequestModel):
    """The form of the text."""

    format: TextFormat = Field(default_factory=TextFormat)
    verbosity: Ignored = None


class Reasoning(RequestModel):
    """How much to think, for templates that know of it."""

    effort: Annotated[str, Field(max_length=16)] | None = None
    summary: Ignored = None
    generate_summary: Ignored = None


class ResponsesRequest(RequestModel):
    """Something to answer. Nothing is kept of it unless `store` asks for that."""

    model: str | None = None
    input: Annotated[
        list[InputItem],
        Field(min_length=1, max_length=4096),
        FailFast(),
        BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem]),
    ]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_logprobs: Count | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS), FailFast()] = Field(default_factory=list)
    tool_choice: Annotated[
        ResponsesToolChoice,
        BeforeValidator(lambda value: {"type": value} if isinstance(value, str) else value),
    ] = Field(default_factory=lambda: ResponsesToolChoice(type="auto"))
    parallel_tool_calls: bool = True
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: Reasoning = Field(default_factory=Reasoning)
    include: Annotated[list[str], Field(max_length=16)] = Field(default_factory=list)
    metadata: Annotated[dict[str, str], Field(max_length=16)] = Field(default_factory=dict)
    store: bool = False
    previous_response_id: ItemId | None = None
    stream: bool = False

    max_tool_calls: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    stream_options: Ignored = None
    user: Ignored = None

    background: Refused = None
    context_management: Refused = None
    conversation: Refused = None
    moderation: Refused = None
    prompt: Refused = None
    truncation: Literal["disabled"] = "disabled"

    @field_validator("include")
    @classmethod
    def _only_what_there_is(cls, value: list[str]) -> list[str]:
        if unknown := set(value) - {LOGPROBS, "reasoning.encrypted_content"}:
            raise ValueError(f"{sorted(unknown)[0][:60]!r} cannot be included: this server has nothing of it")
        return value

    @property
    def wants_logprobs(self) -> bool:
        """Whether the text's logprobs are asked for."""
        return LOGPROBS in self.include or self.top_logprobs is not None
