"""What a response says of its request."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from server.protocol.chat import ChatMessage, ChatRequest, TextPart
from server.protocol.responses_request import InputCall, InputMessage, InputResult, ResponsesRequest
from server.protocol.tools import CalledFunction, MadeCall
from server.serving.conversions import asked_of, refused_as


def frame(body: ResponsesRequest, model: str, drawing: Mapping[str, Any]) -> dict[str, Any]:
    """All of a response but its output; `drawing`: the sampling parameters that count."""
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata,
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.reasoning.effort, "summary": None},
        "store": body.store,
        "temperature": drawing["temperature"],
        "text": {"format": body.text.format.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": _choice(body),
        "tools": [tool.model_dump() for tool in body.tools],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": drawing["top_p"],
        "truncation": "disabled",
        "background": False,
    }


def chat_of_response(body: ResponsesRequest, earlier: Sequence[ChatMessage]) -> ChatRequest:
    """The chat that asks for what `body` asks for, after the turns of an `earlier` response. Raises ApiError."""
    return refused_as("input", lambda: _chat(body, earlier))


def turn_of(response: Mapping[str, Any]) -> ChatMessage | None:
    """The assistant's turn that a finished response is; None if it is empty."""
    texts = [part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]]
    calls = [
        MadeCall(id=item["call_id"], function=CalledFunction(name=item["name"], arguments=item["arguments"]))
        for item in response["output"]
        if item["type"] == "function_call" and item["status"] == "completed"
    ]
    return ChatMessage.assistant(texts, calls)


def _chat(body: ResponsesRequest, earlier: Sequence[ChatMessage]) -> ChatRequest:
    messages = [*earlier, *_turns(body)]
    if body.instructions:
        instructions = TextPart(type="text", text=body.instructions)
        messages.insert(0, ChatMessage(role="system", content=[instructions]))
    return ChatRequest(
        model=body.model,
        messages=messages,
        max_tokens=body.max_output_tokens,
        **asked_of(body, "temperature", "top_p"),
        logprobs=body.wants_logprobs,
        top_logprobs=(body.top_logprobs or 0) if body.wants_logprobs else None,
        tools=[tool.as_tool() for tool in body.tools],
        tool_choice=body.tool_choice.as_choice(),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=body.text.format.as_format(),
        reasoning_effort=body.reasoning.effort,
        stream=body.stream,
    )


def _turns(body: ResponsesRequest) -> list[ChatMessage]:
    """The input as turns; calls belong to the assistant's turn before them."""
    turns: list[ChatMessage] = []
    for item in body.input:
        if isinstance(item, InputMessage | InputResult):
            turns.append(item.as_chat())
        elif isinstance(item, InputCall):
            if not turns or turns[-1].role != "assistant":
                turns.append(ChatMessage(role="assistant", tool_calls=[item.as_call()]))
            else:
                turns[-1] = turns[-1].model_copy(update={"tool_calls": [*turns[-1].tool_calls, item.as_call()]})
    return turns


def _choice(body: ResponsesRequest) -> Any:
    choice = body.tool_choice
    return choice.type if choice.name is None else {"type": "function", "name": choice.name}
