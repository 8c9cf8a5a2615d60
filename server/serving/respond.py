"""Answers a job: whole, or as a stream of server-sent events."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import Request
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import as_api_error, internal_error
from server.observer import RequestObserver
from server.services import Services
from server.serving.choice import Delta
from server.serving.dialects.dialect import Dialect
from server.serving.disconnect import unless_disconnected
from server.serving.generation import Generation, Job
from server.serving.off_loop import off_loop
from server.serving.paced_sender import PacedSender
from server.settings import Pace

logger = logging.getLogger(__name__)


Answers = dict[int | str, dict[str, Any]]


def answers(whole: Any) -> Answers:
    """What `respond` answers with, for the API's description; `whole` is the type of an answer that is no stream."""
    return {200: {"model": whole, "content": {"text/event-stream": {"schema": {"type": "string"}}}}}


async def respond(
    request: Request,
    services: Services,
    prepare: Callable[[], Awaitable[Job]],
    dialect: Dialect,
    *,
    stream: bool,
) -> Response:
    """The answer to a body. A client that leaves ends the work for it, whatever stage that is in."""

    async def work() -> Response:
        job = await prepare()
        generation = Generation(job, services.engine, _observer(request, services, job))
        if stream:
            return EventStream(generation, dialect, services.settings.pace)
        return await _whole(generation, dialect)

    return await unless_disconnected(request.receive, work())


def _observer(request: Request, services: Services, job: Job) -> RequestObserver:
    if services.tracer is None:
        return services.metrics
    path, params = request.url.path, job.parts[0].request.params
    return services.tracer.watch(request.state.request_id, path, request.headers, params, services.metrics)


async def _whole(generation: Generation, dialect: Dialect) -> Response:
    deltas: defaultdict[int, list[Delta]] = defaultdict(list)
    async with generation, aclosing(generation.deltas()) as stream:
        async for delta in stream:
            deltas[delta.index].append(delta)
    choices = [Delta.joined(deltas[index]) for index in sorted(deltas)]
    num_pieces = sum(len(choice.pieces) for choice in choices)
    body = await off_loop(num_pieces, lambda: to_json(dialect.answer(choices, generation.usage)))
    return Response(body, media_type="application/json")


class EventStream(Response):
    """Submits a generation and sends its deltas as they come. What the engine refuses is still a plain HTTP error.

    The generation lives within `__call__`, so that nothing can leave it running without a reader.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, dialect: Dialect, pace: Pace) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._generation = generation
        self._dialect = dialect
        self._pace = pace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        async with self._generation:
            try:
                await unless_disconnected(receive, self._send(send, scope["state"]["request_id"]))
            except ClientDisconnect:
                logger.debug("request %s: the client left, or stopped reading", scope["state"]["request_id"])

    async def _send(self, send: Send, request_id: str) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events(request_id)) as events:
            await PacedSender(send, self._pace).send_all(events)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, request_id: str) -> AsyncGenerator[bytes]:
        generation, dialect = self._generation, self._dialect
        try:
            yield dialect.opening(generation.usage)
            async with aclosing(generation.deltas()) as deltas:
                async for delta in deltas:
                    yield await off_loop(len(delta.pieces), partial(dialect.told, delta, generation.usage))
            yield dialect.closing(generation.usage)
        except Exception as error:
            answer = as_api_error(error)
            if answer is None:
                logger.exception("request %s failed while it was streamed", request_id)
                answer = internal_error(request_id)
            yield dialect.failure(answer)
