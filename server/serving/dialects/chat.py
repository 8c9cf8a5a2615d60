"""POST /v1/chat/completions: how deltas are written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.errors import ApiError
from server.protocol.responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatFinishReason,
    Usage,
)
from server.serving.choice import Delta, End
from server.serving.dialects.openai_stream import OpenAIStream
from server.serving.logprobs import LogprobWriter
from server.tools.events import CallBegins, Event, Said
from server.tools.reader import CallReader


@dataclass(frozen=True, slots=True)
class ChatFacts:
    """What stands in every chunk, and what was asked for."""

    id: str
    created: int
    model: str
    role: str
    gives_logprobs: bool
    gives_ids: bool


class ChatDialect:
    """Follows the choices of one answer, each with a call reader of its own."""

    def __init__(
        self,
        facts: ChatFacts,
        logprobs: LogprobWriter,
        make_reader: Callable[[], CallReader],
        stream: OpenAIStream,
    ) -> None:
        self._facts = facts
        self._logprobs = logprobs
        self._readers = defaultdict[int, CallReader](make_reader)
        self._stream = stream

    def answer(self, choices: Sequence[Delta], usage: Usage) -> ChatCompletion:
        """See `Dialect`."""
        answer: ChatCompletion = {
            "id": self._facts.id,
            "object": "chat.completion",
            "created": self._facts.created,
            "model": self._facts.model,
            "choices": [self._choice(choice) for choice in choices],
            "usage": usage,
        }
        prompt = choices[0].prompt
        if prompt is not None and self._facts.gives_ids:
            answer["prompt_token_ids"] = list(prompt.tokens)
        if prompt is not None and prompt.logprobs is not None:
            answer["prompt_logprobs"] = self._logprobs.prompt(prompt.logprobs)
        return answer

    def opening(self, _: Usage) -> bytes:
        """See `Dialect`."""
        return b""

    def told(self, delta: Delta, usage: Usage) -> bytes:
        """See `Dialect`."""
        chunks = [self._chunk([self._role_choice(delta)])] if delta.is_first else []
        if chunks and delta.prompt is not None and self._facts.gives_ids:
            chunks[0]["prompt_token_ids"] = list(delta.prompt.tokens)
        chunks += [self._chunk([choice]) for choice in self._chunk_choices(delta)]
        return self._stream.chunks(chunks, usage)

    def closing(self, usage: Usage) -> bytes:
        """See `Dialect`."""
        return self._stream.closing(self._chunk([]), usage)

    def failure(self, error: ApiError) -> bytes:
        """See `Dialect`."""
        return self._stream.failure(error)

    def _choice(self, whole: Delta) -> ChatChoice:
        assert whole.end is not None, "the choice is complete"
        reader = self._readers[whole.index]
        events = reader.read(whole.text, is_end=True)
        choice: ChatChoice = {
            "index": whole.index,
            "message": self._message(events, reader),
            "logprobs": self._logprobs.chat(whole.pieces) if self._facts.gives_logprobs else None,
            "finish_reason": _reason(whole.end, reader),
            "stop_reason": whole.end.stop_reason,
        }
        if self._facts.gives_ids:
            choice["token_ids"] = [piece.token for piece in whole.pieces]
        return choice

    def _message(self, events: Sequence[Event], reader: CallReader) -> AssistantMessage:
        text = "".join(event.text for event in events if isinstance(event, Said))
        message: AssistantMessage = {"role": self._facts.role, "content": text, "refusal": None}
        if reader.calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in reader.calls
            ]
        return message

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return {
            "id": self._facts.id,
            "object": "chat.completion.chunk",
            "created": self._facts.created,
            "model": self._facts.model,
            "choices": choices,
        }

    def _role_choice(self, delta: Delta) -> ChatChunkChoice:
        return {
            "index": delta.index,
            "delta": {"role": self._facts.role, "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }

    def _chunk_choices(self, delta: Delta) -> list[ChatChunkChoice]:
        reader = self._readers[delta.index]
        first_call = len(reader.calls)
        events = reader.read(delta.text, is_end=delta.end is not None)
        told = _as_deltas(events, reader, first_call)
        if not told and (delta.pieces or delta.end):
            told = [{}]
        choices: list[ChatChunkChoice] = [
            {"index": delta.index, "delta": each, "logprobs": None, "finish_reason": None} for each in told
        ]
        if choices and self._facts.gives_logprobs:
            choices[0]["logprobs"] = self._logprobs.chat(delta.pieces)
        if choices and self._facts.gives_ids:
            choices[0]["token_ids"] = [piece.token for piece in delta.pieces]
        if delta.end is not None:
            choices[-1]["finish_reason"] = _reason(delta.end, reader)
            choices[-1]["stop_reason"] = delta.end.stop_reason
        return choices


def _as_deltas(events: Sequence[Event], reader: CallReader, number: int) -> list[ChatDelta]:
    """`events` in the shape of the wire; `number`: calls that `reader` knew before them."""
    deltas: list[ChatDelta] = []
    for event in events:
        if isinstance(event, Said):
            deltas.append({"content": event.text})
        elif isinstance(event, CallBegins):
            call = reader.calls[number]
            function = {"name": call.name, "arguments": ""}
            deltas.append({"tool_calls": [{"index": number, "id": call.id, "type": "function", "function": function}]})
            number += 1
        else:
            deltas.append({"tool_calls": [{"index": number - 1, "function": {"arguments": event.text}}]})
    return deltas


def _reason(end: End, reader: CallReader) -> ChatFinishReason:
    return "tool_calls" if reader.calls and end.reason == "stop" else end.reason
