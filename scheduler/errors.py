"""Why the engine refuses a request.

EngineError
├── RequestRejected       the client's mistake: nothing was queued            (HTTP 400)
├── QueueFull             too many requests wait                              (HTTP 503, retry later)
├── EngineDraining        shutting down, newcomers are sent away              (HTTP 503)
└── EngineDead            the loop cannot go on                               (HTTP 503)
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all that `AsyncEngine.submit` raises."""


class RequestRejected(EngineError):
    """The request can never run here. `param` names the field to change, `code` is OpenAI's machine-readable code."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFull(EngineError):
    """The waiting queue is at its limit."""


class EngineDraining(EngineError):
    """The engine finishes what it has and takes nothing new."""


class EngineDead(EngineError):
    """The engine loop has ended; no request will run again in this process."""
