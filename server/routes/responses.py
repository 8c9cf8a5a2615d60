"""POST /v1/responses, and what it kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from server.json_route import JSONRoute
from server.protocol.responses_request import ResponsesRequest
from server.services import CurrentServices
from server.serving.dialects.responses import ResponsesDialect
from server.serving.jobs import chat_job
from server.serving.logprobs import LogprobWriter
from server.serving.models import served_name
from server.serving.respond import answers, respond
from server.serving.response_frame import chat_of_response, frame, turn_of
from server.serving.tool_use import reader_factory, tool_use

router = APIRouter(route_class=JSONRoute)


@router.post("/v1/responses", response_model=None, responses=answers(dict[str, Any]))
async def create_response(body: ResponsesRequest, request: Request, services: CurrentServices) -> Response:
    """Answer, or ask for calls of tools."""
    model = served_name(body.model, services.settings)
    store = services.responses
    previous = body.previous_response_id
    earlier = () if previous is None else store.get(previous, "previous_response_id").messages
    chat = chat_of_response(body, earlier)
    use = tool_use(chat, services.settings)

    def keep(response: Mapping[str, Any]) -> None:
        if body.store:
            turn = turn_of(response)
            said = chat.messages[1:] if body.instructions else chat.messages  # instructions count once
            store.add(response, (*said, *([] if turn is None else [turn])))

    logprobs = LogprobWriter(services.tokenizer, skip_special=True) if body.wants_logprobs else None
    drawing = services.settings.sampling.of(chat)
    dialect = ResponsesDialect(frame(body, model, drawing), reader_factory(use)(), logprobs, keep)
    return await respond(request, services, partial(chat_job, chat, services, use), dialect, stream=body.stream)


@router.get("/v1/responses/{response_id}")
async def retrieve_response(response_id: str, services: CurrentServices) -> dict[str, Any]:
    """A response that was kept."""
    return dict(services.responses.get(response_id, "response_id").response)


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, services: CurrentServices) -> dict[str, Any]:
    """Forget a response."""
    services.responses.remove(response_id)
    return {"id": response_id, "object": "response", "deleted": True}
