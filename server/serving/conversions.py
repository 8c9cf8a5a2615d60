"""Other APIs' bodies as chats: one way to serve them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError

from server.errors import ApiError
from server.protocol.chat import ChatMessage, ChatRequest, TextPart
from server.protocol.fields import RequestModel
from server.protocol.messages import CountTokensRequest, MessagesRequest, MessagesToolChoice
from server.protocol.structured import NamedSchema, ResponseFormat
from server.protocol.tools import FunctionChoice, Tool, ToolChoice

T = TypeVar("T")

_KINDS = {"auto": "auto", "any": "required", "tool": "function", "none": "none"}


def chat_of_messages(body: CountTokensRequest) -> ChatRequest:
    """The chat that asks for what `body` asks for. Raises ApiError."""
    return refused_as("messages", lambda: _chat_of_messages(body))


def refused_as(param: str, build: Callable[[], T]) -> T:
    """What `build` makes; what validation refuses in it is told as a mistake in `param`. Raises ApiError."""
    try:
        return build()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"]) or param
        raise ApiError(f"{place}: {first['msg'].removeprefix('Value error, ')}", param=place) from None


def asked_of(body: RequestModel, *names: str) -> dict[str, Any]:
    """The fields of `names` that the client sent."""
    return {name: getattr(body, name) for name in names if name in body.model_fields_set}


def _chat_of_messages(body: CountTokensRequest) -> ChatRequest:
    messages = [message for turn in body.messages for message in turn.as_chat()]
    if body.system:
        parts = [TextPart(type="text", text=block.text) for block in body.system]
        messages.insert(0, ChatMessage(role="system", content=parts))
    if not messages:
        raise ApiError("messages: nothing is said in them", param="messages")
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "continue_final_message": messages[-1].role == "assistant" and not messages[-1].tool_calls,
        "tools": [Tool(type="function", function=tool.as_function()) for tool in body.tools],
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": not body.tool_choice.disable_parallel_tool_use,
        "reasoning_effort": body.output_config.effort,
        "response_format": _response_format(body),
    }
    if isinstance(body, MessagesRequest):
        fields |= {
            "max_tokens": body.max_tokens,
            "stop": body.stop_sequences,
            "stream": body.stream,
            **asked_of(body, "temperature", "top_p", "top_k"),
        }
    return ChatRequest(**fields)


def _tool_choice(choice: MessagesToolChoice) -> ToolChoice:
    function = None if choice.name is None or choice.type != "tool" else FunctionChoice(name=choice.name)
    return ToolChoice.model_validate({"type": _KINDS[choice.type], "function": function})


def _response_format(body: CountTokensRequest) -> ResponseFormat:
    asked = body.output_config.format
    if asked is None:
        return ResponseFormat(type="text")
    return ResponseFormat(type="json_schema", json_schema=NamedSchema(name="output", schema=asked.schema_))
