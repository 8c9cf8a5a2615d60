"""Reads JSON bodies strictly: valid UTF-8, no NaN, no lone surrogates, bounded nesting; tells of unknown fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import from_json

from server.errors import ApiError

_IGNORED = "X-Ignored-Fields"
_MOST_TOLD = 10
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class _StrictRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = _parse(await self.body())
        return self._json


class JSONRoute(APIRoute):
    """A route whose body, if it takes one, is JSON that says so in its Content-Type.

    The answer names fields that nobody here knows in `X-Ignored-Fields`.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute.get_route_handler`."""
        handle = super().get_route_handler()
        known = {name for param in self.dependant.body_params for name in _names(param.field_info.annotation)}
        takes_body = self.body_field is not None

        async def read_strictly(request: Request) -> Response:
            if takes_body:
                _check_headers(request)
                request = _StrictRequest(request.scope, request.receive)
                body = await request.json()  # here, since FastAPI would hide what is wrong behind words of its own
                ignored = _ignored(body, known) if isinstance(body, dict) else ""
            response = await handle(request)
            if takes_body and ignored:
                response.headers[_IGNORED] = ignored
            return response

        return read_strictly


def _names(model: Any) -> Iterable[str]:
    """The fields of a body, as clients write them."""
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return (field.alias or name for name, field in model.model_fields.items())


def _ignored(body: dict[str, Any], known: set[str]) -> str:
    """The names in `body` that are not `known`, those that a header can hold."""
    names = [name for name in body if name not in known and _PLAIN_NAME.fullmatch(name)]
    return ", ".join(names[:_MOST_TOLD])


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
