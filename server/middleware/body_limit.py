"""Refuses bodies that are too large, before anything reads them whole."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError


class BodyLimit:
    """Answers 413 when the announced or the received body exceeds `max_bytes`, and closes the connection."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self._max_bytes = max_bytes

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

        async def limited_receive() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._max_bytes:
                    raise self._too_large()
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
