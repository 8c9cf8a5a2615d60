"""Who may ask: every path needs a key, save a few that hold nothing worth guarding."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/ready", "/version", "/metrics"})


class Authentication:
    """Requires one of `api_keys` as `Authorization: Bearer KEY` or `X-Api-Key: KEY`, everywhere but in `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str]) -> None:
        self.app = app
        self._digests = [_digest(key.encode()) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._knows(Headers(scope=scope)):
            await self.app(scope, receive, send)
        else:
            await _UNAUTHORIZED.response(scope["path"])(scope, receive, send)

    def _knows(self, headers: Headers) -> bool:
        credentials, keys = headers.getlist("authorization"), headers.getlist("x-api-key")
        sent = {*credentials, *(f"Bearer {key}" for key in keys)}
        if len(sent) != 1 or len(credentials) > 1 or len(keys) > 1:
            return False
        scheme, _, key = sent.pop().partition(" ")
        digest = _digest(key.strip().encode("latin-1"))
        # A list, not a generator: every digest is compared, so that time tells nothing.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


_UNAUTHORIZED = ApiError(
    "Send a valid API key, in the header Authorization: Bearer KEY or X-Api-Key: KEY.",
    status=401,
    kind="authentication_error",
    code="invalid_api_key",
    headers={"WWW-Authenticate": "Bearer"},
)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
