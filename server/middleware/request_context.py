"""Gives every request an id, and an answer even where nobody foresaw the failure."""

from __future__ import annotations

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import internal_error
from server.request_id import REQUEST_ID

logger = logging.getLogger(__name__)

_HEADER = "x-request-id"
_VALID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestContext:
    """Echoes X-Request-Id where the client sent a usable one, else makes one; answers 500 to unforeseen exceptions.

    The id is in `request.state.request_id`. It names the request in logs and answers, and identifies nothing inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get(_HEADER))
        scope.setdefault("state", {})["request_id"] = request_id
        REQUEST_ID.set(request_id)
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)[_HEADER] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            if started:
                raise
            logger.exception("request %s failed", request_id)
            await internal_error(request_id).response(scope["path"])(scope, receive, send_with_id)


def _request_id(sent: str | None) -> str:
    return sent if sent is not None and _VALID.fullmatch(sent) else uuid.uuid4().hex
