"""The id of the request that is being worked on, for whoever writes a log line on the way."""

from __future__ import annotations

from contextvars import ContextVar

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
