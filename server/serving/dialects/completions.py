"""POST /v1/completions: how deltas are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.errors import ApiError
from server.protocol.responses import Completion, CompletionChoice, Usage
from server.serving.choice import Delta
from server.serving.dialects.openai_stream import OpenAIStream
from server.serving.logprobs import LogprobWriter


@dataclass(frozen=True, slots=True)
class CompletionDialect:
    """`gives_logprobs` and `gives_ids`: what was asked for. `id`, `created` and `model` stand in every chunk."""

    id: str
    created: int
    model: str
    logprobs: LogprobWriter
    gives_logprobs: bool
    gives_ids: bool
    stream: OpenAIStream

    def answer(self, choices: Sequence[Delta], usage: Usage) -> Completion:
        """See `Dialect`."""
        return self._completion([self._choice(choice) for choice in choices]) | {"usage": usage}

    def opening(self, _: Usage) -> bytes:
        """See `Dialect`."""
        return b""

    def told(self, delta: Delta, usage: Usage) -> bytes:
        """See `Dialect`."""
        return self.stream.chunks([self._completion([self._choice(delta)])], usage)

    def closing(self, usage: Usage) -> bytes:
        """See `Dialect`."""
        return self.stream.closing(self._completion([]), usage)

    def failure(self, error: ApiError) -> bytes:
        """See `Dialect`."""
        return self.stream.failure(error)

    def _completion(self, choices: list[CompletionChoice]) -> Completion:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _choice(self, delta: Delta) -> CompletionChoice:
        choice: CompletionChoice = {
            "index": delta.index,
            "text": delta.text,
            "logprobs": self.logprobs.completion(delta.pieces, delta.offset) if self.gives_logprobs else None,
            "finish_reason": delta.end.reason if delta.end else None,
            "stop_reason": delta.end.stop_reason if delta.end else None,
        }
        if self.gives_ids:
            choice["token_ids"] = [piece.token for piece in delta.pieces if not piece.is_prompt]
        if delta.prompt is not None:
            if self.gives_ids:
                choice["prompt_token_ids"] = list(delta.prompt.tokens)
            if delta.prompt.logprobs is not None:
                choice["prompt_logprobs"] = self.logprobs.prompt(delta.prompt.logprobs)
        return choice
