"""Reads JSON bodies strictly: valid UTF-8, no NaN, no lone surrogates, bounded nesting."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from server.errors import ApiError


class _StrictRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = _parse(await self.body())
        return self._json


class JSONRoute(APIRoute):
    """A route whose body, if it takes one, is JSON that says so in its Content-Type."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute.get_route_handler`."""
        handle = super().get_route_handler()
        takes_body = self.body_field is not None

        async def read_strictly(request: Request) -> Response:
            if takes_body:
                _check_headers(request)
                request = _StrictRequest(request.scope, request.receive)
                await request.json()  # here, since FastAPI would hide what is wrong behind a message of its own
            return await handle(request)

        return read_strictly


def _check_headers(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError("Send the body as JSON, with the header Content-Type: application/json.", status=415)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError("Send the body uncompressed, without a Content-Encoding header.", status=415)


def _parse(body: bytes) -> Any:
    try:
        # The parser itself refuses more than 200 levels of nesting, bytes that are no UTF-8 and lone surrogates.
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(f"The body is not valid JSON: {error}.", code="invalid_json") from None
