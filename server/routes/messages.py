"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's API."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from server.json_route import JSONRoute
from server.protocol.messages import CountTokensRequest, MessagesRequest
from server.protocol.responses import AnthropicError
from server.services import CurrentServices
from server.serving.conversions import chat_of_messages
from server.serving.dialects.messages import MessageFacts, MessagesDialect
from server.serving.jobs import chat_job, offer_of
from server.serving.models import served_name
from server.serving.respond import Answers, answers, respond
from server.serving.tool_use import reader_factory, tool_use

_WRONG: Answers = {"default": {"model": AnthropicError, "description": "What went wrong"}}

router = APIRouter(route_class=JSONRoute, responses=_WRONG)


@router.post("/v1/messages", response_model=None, responses=answers(dict[str, Any]))
async def create_message(body: MessagesRequest, request: Request, services: CurrentServices) -> Response:
    """Continue a conversation, or ask for the use of tools."""
    chat = chat_of_messages(body)
    use = tool_use(chat, services.settings)
    facts = MessageFacts(f"msg_{uuid.uuid4().hex}", served_name(body.model, services.settings))
    dialect = MessagesDialect(facts, reader_factory(use)())
    return await respond(request, services, partial(chat_job, chat, services, use), dialect, stream=body.stream)


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountTokensRequest, services: CurrentServices) -> dict[str, int]:
    """The tokens of a conversation, as the model would read it."""
    served_name(body.model, services.settings)
    chat = chat_of_messages(body)
    ids = await services.prompts.chat(chat.messages, chat, offer_of(tool_use(chat, services.settings)))
    return {"input_tokens": len(ids)}
