"""The form of an answer that must be a call."""

from __future__ import annotations

import json
from collections.abc import Sequence

from llguidance import LLMatcher

from server.protocol.tools import Tool
from server.structured.forms import Form, json_in_lark
from server.tools.events import CallForm


def forced_calls(tools: Sequence[Tool], form: CallForm, *, parallel: bool) -> Form:
    """One call of one of `tools`, or with `parallel` up to one per tool, written as `form` says."""
    rules = [f"call{number}: {_call(tool, form)}" for number, tool in enumerate(tools)]
    one = " | ".join(f"call{number}" for number in range(len(tools)))
    more = f" ({json.dumps(form.separator)} call){{0,{len(tools) - 1}}}" if parallel and len(tools) > 1 else ""
    lark = "\n".join([f"start: call{more}", f"call: {one}", *rules])
    return Form(LLMatcher.grammar_from_lark(lark), "tools")


def _call(tool: Tool, form: CallForm) -> str:
    head = f'{form.begin}{{"name": {json.dumps(tool.function.name)}, "{form.arguments_key}": '
    parts = [json.dumps(head), json_in_lark(tool.function.schema_of_arguments), json.dumps("}" + form.end)]
    return " ".join(parts)
