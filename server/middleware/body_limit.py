"""Refuses bodies that are too large, before anything reads them whole, and those that do not end."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError

_TOO_SLOW = ApiError(
    "The body took too long to arrive; send it at once.",
    status=408,
    code="body_too_slow",
    headers={"Connection": "close"},
)


class BodyLimit:
    """Answers 413 when the announced or the received body exceeds `max_bytes`, and closes the connection.

    And 408 when it is not complete after `seconds`.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        self.app = app
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            await self._too_large().response(scope["path"])(scope, receive, send)
            return
        received = 0
        deadline: float | None = asyncio.get_running_loop().time() + self._seconds

        async def limited_receive() -> Message:
            nonlocal received, deadline
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise _TOO_SLOW from None
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._max_bytes:
                    raise self._too_large()
                if not message.get("more_body", False):
                    deadline = None
            return message

        await self.app(scope, limited_receive, send)

    def _too_large(self) -> ApiError:
        # What is left of the body would otherwise be read and thrown away.
        return ApiError(
            f"The body is larger than {self._max_bytes} bytes; send less at once.",
            status=413,
            code="body_too_large",
            headers={"Connection": "close"},
        )
