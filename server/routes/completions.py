"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from functools import partial

from fastapi import APIRouter, Request, Response

from server.json_route import JSONRoute
from server.protocol.completions import CompletionRequest
from server.protocol.responses import Completion
from server.services import CurrentServices
from server.serving.dialects.completions import CompletionDialect
from server.serving.dialects.openai_stream import OpenAIStream
from server.serving.jobs import completion_job
from server.serving.logprobs import LogprobWriter
from server.serving.models import served_name
from server.serving.respond import answers, respond

router = APIRouter(route_class=JSONRoute)


@router.post("/v1/completions", response_model=None, responses=answers(Completion))
async def create_completion(body: CompletionRequest, request: Request, services: CurrentServices) -> Response:
    """Continue one or more prompts."""
    dialect = CompletionDialect(
        id=f"cmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=served_name(body.model, services.settings),
        logprobs=LogprobWriter(
            services.tokenizer, skip_special=body.skip_special_tokens, as_ids=body.return_tokens_as_token_ids
        ),
        gives_logprobs=body.logprobs is not None,
        gives_ids=body.return_token_ids,
        stream=OpenAIStream(body.stream_options),
    )
    return await respond(request, services, partial(completion_job, body, services), dialect, stream=body.stream)
