"""How one conversation uses tools: which parser reads the answer, and what the answer must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from paged_kv.plugins import load
from server.errors import ApiError
from server.protocol.chat import ChatRequest
from server.protocol.tools import Tool
from server.settings import ServerSettings
from server.structured.forms import Form
from server.tools.events import CallForm, ParserFamily
from server.tools.forced import forced_calls
from server.tools.parsers import hermes
from server.tools.reader import CallReader

PARSERS = "server.tools.parsers"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`form`: how calls are written. `forced`: the grammar of an answer that must be a call, else None."""

    tools: tuple[Tool, ...]
    family: ParserFamily
    form: CallForm
    parallel: bool
    forced: Form | None


def tool_use(body: ChatRequest, settings: ServerSettings) -> ToolUse | None:
    """None if there are no tools. Raises ApiError if the server was not told how the model writes calls."""
    if not body.offers_tools:
        return None
    family = hermes.PARSER if settings.tool_call_parser is None else _family(settings.tool_call_parser)
    if not body.must_call:
        if not settings.enable_auto_tool_choice:
            raise ApiError(
                'tool_choice: "auto" needs a server that was started with --enable-auto-tool-choice and '
                "--tool-call-parser; a required call, or a named one, can be asked for",
                param="tool_choice",
            )
        return ToolUse(tuple(body.tools), family, family.form or hermes.FORM, body.parallel_tool_calls, None)
    if family.form is None:
        family = hermes.PARSER
    form = family.form or hermes.FORM
    wanted = body.tool_choice.function
    callable_now = [tool for tool in body.tools if wanted is None or tool.function.name == wanted.name]
    parallel = body.parallel_tool_calls and wanted is None
    forced = forced_calls(callable_now, form, parallel=parallel)
    return ToolUse(tuple(body.tools), family, form, parallel, forced)


def reader_factory(use: ToolUse | None) -> Callable[[], CallReader]:
    """Makes a reader for each choice."""
    if use is None:
        return partial(CallReader, None)
    return partial(CallReader, partial(use.family.parser, use.tools), parallel=use.parallel)


def _family(name: str) -> ParserFamily:
    family: ParserFamily = load(PARSERS, name, "PARSER")
    return family
