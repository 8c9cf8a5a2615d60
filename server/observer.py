"""Who may hear of requests as they run: metrics always, traces if they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from scheduler.request import SamplingParams, Timings
from server.protocol.responses import Usage


class RequestObserver(Protocol):
    """Hears of one request, or of all. Called on the event loop; must be quick and must not raise."""

    def request_began(self, num_prompt_tokens: int, num_choices: int, max_tokens: int) -> None:
        """The engine took a prompt of the request."""

    def tokens_came(self, num_tokens: int, seconds: float, *, first: bool) -> None:
        """Tokens of one choice, `seconds` after those before, or after the request if they are its first."""

    def choice_ended(self, reason: str, num_tokens: int, timings: Timings | None) -> None:
        """A choice is over. `timings` None: it was given up before the engine could tell."""

    def request_ended(self, usage: Usage) -> None:
        """All choices of a request are over."""


class Tracer(Protocol):
    """Makes a trace of each request; see `server.tracing.Tracing`."""

    def watch(
        self, request_id: str, path: str, headers: Mapping[str, str], params: SamplingParams, then: RequestObserver
    ) -> RequestObserver:
        """An observer of one request that tells `then` of everything, too. Never raises."""

    def close(self) -> None:
        """Send what is left."""
