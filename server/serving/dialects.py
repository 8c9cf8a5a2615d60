"""The two dialects of the wire: how deltas are written as completions and as chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from server.protocol.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    Usage,
)
from server.serving.choice import Delta
from server.serving.logprobs import LogprobWriter

Json = Mapping[str, Any]


class Dialect(Protocol):
    """Writes one answer, whole or in chunks."""

    def answer(self, choices: Sequence[Delta], usage: Usage) -> Json:
        """The whole answer; each choice is one delta."""

    def chunks(self, delta: Delta) -> Sequence[Json]:
        """The chunks that tell of `delta`."""

    def usage_chunk(self, usage: Usage) -> Json:
        """The last chunk, for those who asked for it."""


@dataclass(frozen=True, slots=True)
class CompletionDialect:
    """`logprobs` None: not asked for. `null_usage`: chunks say that the usage comes later."""

    id: str
    created: int
    model: str
    logprobs: LogprobWriter | None
    null_usage: bool

    def answer(self, choices: Sequence[Delta], usage: Usage) -> Completion:
        """See `Dialect`."""
        return self._completion([self._choice(choice) for choice in choices]) | {"usage": usage}

    def chunks(self, delta: Delta) -> Sequence[Completion]:
        """See `Dialect`."""
        chunk = self._completion([self._choice(delta)])
        return [chunk | {"usage": None} if self.null_usage else chunk]

    def usage_chunk(self, usage: Usage) -> Completion:
        """See `Dialect`."""
        return self._completion([]) | {"usage": usage}

    def _completion(self, choices: list[CompletionChoice]) -> Completion:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _choice(self, delta: Delta) -> CompletionChoice:
        return {
            "index": delta.index,
            "text": delta.text,
            "logprobs": self.logprobs.completion(delta.pieces, delta.offset) if self.logprobs else None,
            "finish_reason": delta.end.reason if delta.end else None,
            "stop_reason": delta.end.stop_reason if delta.end else None,
        }


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """`logprobs` None: not asked for. `null_usage`: chunks say that the usage comes later."""

    id: str
    created: int
    model: str
    role: str
    logprobs: LogprobWriter | None
    null_usage: bool

    def answer(self, choices: Sequence[Delta], usage: Usage) -> ChatCompletion:
        """See `Dialect`."""
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(choice) for choice in choices],
            "usage": usage,
        }

    def chunks(self, delta: Delta) -> Sequence[ChatChunk]:
        """See `Dialect`."""
        role: ChatChunkChoice = {
            "index": delta.index,
            "delta": {"role": self.role, "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        choices = [role, self._chunk_choice(delta)] if delta.is_first else [self._chunk_choice(delta)]
        chunks = [self._chunk([choice]) for choice in choices]
        return [chunk | {"usage": None} for chunk in chunks] if self.null_usage else chunks

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        """See `Dialect`."""
        return self._chunk([]) | {"usage": usage}

    def _choice(self, whole: Delta) -> ChatChoice:
        assert whole.end is not None, "the choice is complete"
        return {
            "index": whole.index,
            "message": {"role": self.role, "content": whole.text, "refusal": None},
            "logprobs": self.logprobs.chat(whole.pieces) if self.logprobs else None,
            "finish_reason": whole.end.reason,
            "stop_reason": whole.end.stop_reason,
        }

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _chunk_choice(self, delta: Delta) -> ChatChunkChoice:
        choice: ChatChunkChoice = {
            "index": delta.index,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": self.logprobs.chat(delta.pieces) if self.logprobs else None,
            "finish_reason": delta.end.reason if delta.end else None,
        }
        return choice | {"stop_reason": delta.end.stop_reason} if delta.end else choice
