"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from functools import partial

from fastapi import APIRouter, Request, Response

from server.json_route import JSONRoute
from server.protocol.chat import ChatRequest
from server.protocol.responses import ChatCompletion
from server.services import CurrentServices
from server.serving.dialects.chat import ChatDialect, ChatFacts
from server.serving.dialects.openai_stream import OpenAIStream
from server.serving.jobs import chat_job
from server.serving.logprobs import LogprobWriter
from server.serving.models import served_name
from server.serving.respond import answers, respond
from server.serving.tool_use import reader_factory, tool_use

router = APIRouter(route_class=JSONRoute)


@router.post("/v1/chat/completions", response_model=None, responses=answers(ChatCompletion))
async def create_chat_completion(body: ChatRequest, request: Request, services: CurrentServices) -> Response:
    """Continue a conversation, or ask for calls of tools."""
    facts = ChatFacts(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=served_name(body.model, services.settings),
        role=services.settings.response_role,
        gives_logprobs=body.logprobs,
        gives_ids=body.return_token_ids,
    )
    use = tool_use(body, services.settings)
    logprobs = LogprobWriter(
        services.tokenizer, skip_special=body.skip_special_tokens, as_ids=body.return_tokens_as_token_ids
    )
    dialect = ChatDialect(facts, logprobs, reader_factory(use), OpenAIStream(body.stream_options))
    return await respond(request, services, partial(chat_job, body, services, use), dialect, stream=body.stream)
