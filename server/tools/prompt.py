"""Tells a model of tools where its chat template does not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.tools.events import CallForm

Message = dict[str, Any]

_TOOLS = re.compile(r"\btools\b")


def knows_tools(template: str | None) -> bool:
    """Whether a chat template writes tools itself."""
    return template is not None and _TOOLS.search(template) is not None


def with_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], form: CallForm) -> list[Message]:
    """`messages` for a template that knows of no tools: they stand in the system's turn, calls and results as text."""
    spelled = _joined([_spelled(message, form) for message in messages])
    if not tools:
        return spelled
    explanation = _explanation(tools, form)
    if spelled and spelled[0]["role"] == "system":
        first, *rest = spelled
        return [first | {"content": f"{first['content']}\n\n{explanation}"}, *rest]
    return [{"role": "system", "content": explanation}, *spelled]


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Turns of one user after another as one turn: many templates want roles to alternate."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"] == "user":
            joined[-1] = joined[-1] | {"content": f"{joined[-1]['content']}\n\n{message['content']}"}
        else:
            joined.append(message)
    return joined


def _explanation(tools: Sequence[Mapping[str, Any]], form: CallForm) -> str:
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    call = f'{form.begin}{{"name": <function>, "{form.arguments_key}": <object>}}{form.end}'
    return f"You can call these functions:\n{described}\nTo call one, write:\n{call}"


def _spelled(message: Message, form: CallForm) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result of the call:\n{message['content']}"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = form.separator.join(_written(call["function"], form) for call in calls)
    content = "\n".join(text for text in (message["content"], written) if text)
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}


def _written(function: Mapping[str, Any], form: CallForm) -> str:
    call = {"name": function["name"], form.arguments_key: function["arguments"]}
    return f"{form.begin}{json.dumps(call, ensure_ascii=False)}{form.end}"
