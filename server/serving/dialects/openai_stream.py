"""What OpenAI's two older dialects share: where a stream tells of its usage, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.errors import ApiError
from server.protocol.responses import Usage
from server.protocol.sampling import StreamOptions
from server.serving.dialects.dialect import DONE, Json, event


@dataclass(frozen=True, slots=True)
class OpenAIStream:
    """Frames chunks, with the usage where `options` want it."""

    options: StreamOptions

    def chunks(self, chunks: Sequence[Json], usage: Usage) -> bytes:
        """`chunks` as events; `usage` is that so far."""
        if self.options.continuous_usage_stats:
            return b"".join(event({**chunk, "usage": usage}) for chunk in chunks)
        if self.options.include_usage:
            return b"".join(event({**chunk, "usage": None}) for chunk in chunks)
        return b"".join(map(event, chunks))

    def closing(self, without_choices: Json, usage: Usage) -> bytes:
        """The usage in a chunk of its own, for those who asked for it."""
        return (event({**without_choices, "usage": usage}) if self.options.include_usage else b"") + DONE

    def failure(self, error: ApiError) -> bytes:
        """An error object in place of a chunk."""
        return event(error.body) + DONE
