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
from server.serving.dialects import ChatDialect
from server.serving.jobs import chat_job
from server.serving.logprobs import LogprobWriter
from server.serving.models import served_name
from server.serving.respond import answers, respond

router = APIRouter(route_class=JSONRoute)


@router.post("/v1/chat/completions", response_model=None, responses=answers(ChatCompletion))
async def create_chat_completion(body: ChatRequest, request: Request, services: CurrentServices) -> Response:
    """Continue a conversation."""
    logprobs = LogprobWriter(services.tokenizer, skip_special=body.skip_special_tokens)
    dialect = ChatDialect(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=served_name(body.model, services.settings),
        role=services.settings.response_role,
        logprobs=logprobs if body.logprobs else None,
        null_usage=body.stream_options.include_usage,
    )
    return await respond(request, body, services, partial(chat_job, body, services), dialect)
