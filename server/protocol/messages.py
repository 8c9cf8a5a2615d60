"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's API: the bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field
from pydantic_core import to_json

from server.protocol.chat import ChatMessage, TextPart
from server.protocol.fields import INT32_MAX, Count, Ignored, Refused, RequestModel, StopStrings
from server.protocol.structured import Schema
from server.protocol.tools import MAX_TOOLS, CalledFunction, Function, FunctionName, MadeCall


def _as_blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class TextBlock(RequestModel):
    """A piece of text."""

    type: Literal["text"]
    text: str
    cache_control: Ignored = None
    citations: Refused = None


Text = Annotated[
    list[TextBlock],
    Field(max_length=1024),
    BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock]),
]


class ToolUseBlock(RequestModel):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(max_length=256)]
    name: FunctionName
    input: dict[str, Any] = Field(default_factory=dict)
    cache_control: Ignored = None
    caller: Ignored = None


class ToolResultBlock(RequestModel):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(max_length=256)]
    content: Text = Field(default_factory=list)
    is_error: bool = False
    cache_control: Ignored = None


class ThinkingBlock(RequestModel):
    """What an assistant thought; models here are not told of it again."""

    type: Literal["thinking", "redacted_thinking"]


Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")]
Blocks = Annotated[
    list[Block],
    Field(max_length=1024),
    BeforeValidator(_as_blocks, json_schema_input_type=str | list[Block]),
]


class Message(RequestModel):
    """A turn; a user's may hold results of calls beside text."""

    role: Literal["user", "assistant"]
    content: Blocks

    def as_chat(self) -> Iterator[ChatMessage]:
        """The turns of a chat that say the same."""
        texts = [block.text for block in self.content if isinstance(block, TextBlock)]
        results = [block for block in self.content if isinstance(block, ToolResultBlock)]
        calls = [_as_call(block) for block in self.content if isinstance(block, ToolUseBlock)]
        for result in results:
            parts = [TextPart(type="text", text=block.text) for block in result.content]
            empty = TextPart(type="text", text="")
            yield ChatMessage(role="tool", content=parts or [empty], tool_call_id=result.tool_use_id)
        if self.role == "assistant" and (turn := ChatMessage.assistant(texts, calls)) is not None:
            yield turn
        elif self.role == "user" and texts:
            yield ChatMessage(role="user", content=[TextPart(type="text", text=text) for text in texts])


def _as_call(block: ToolUseBlock) -> MadeCall:
    return MadeCall(id=block.id, function=CalledFunction(name=block.name, arguments=to_json(block.input).decode()))


class MessagesTool(RequestModel):
    """A function. Tools that Anthropic's own servers run do not exist here."""

    type: Literal["custom"] = "custom"
    name: FunctionName
    description: Annotated[str, Field(max_length=16 * 1024)] = ""
    input_schema: dict[str, Any]
    cache_control: Ignored = None
    strict: Ignored = None

    def as_function(self) -> Function:
        """The same as OpenAI's API has it. Raises ValidationError."""
        return Function(name=self.name, description=self.description, parameters=self.input_schema)


class MessagesToolChoice(RequestModel):
    """Whether a call may come (auto), must come (any), or must be of one tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool = False


class JsonFormat(RequestModel):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class OutputConfig(RequestModel):
    """The form of the answer."""

    format: JsonFormat | None = None
    effort: Annotated[str, Field(max_length=16)] | None = None


class CountTokensRequest(RequestModel):
    """A conversation."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=4096), FailFast()]
    system: Text = Field(default_factory=list)
    tools: Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS), FailFast()] = Field(default_factory=list)
    tool_choice: MessagesToolChoice = Field(default_factory=lambda: MessagesToolChoice(type="auto"))
    output_config: OutputConfig = Field(default_factory=OutputConfig)
    cache_control: Ignored = None
    speed: Ignored = None
    thinking: Ignored = None


class MessagesRequest(CountTokensRequest):
    """A conversation to continue. One that ends with the assistant's turn has this turn continued."""

    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)]
    stop_sequences: StopStrings = Field(default_factory=list)
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Count = 0
    metadata: Ignored = None
    inference_geo: Ignored = None
    service_tier: Ignored = None
    container: Refused = None
    context_management: Refused = None
    mcp_servers: Refused = None
