"""OpenAI's wire format as a client needs it: request bodies out, stream events in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from client.prompts import Content

Backend = Literal["openai", "openai-chat"]

DEFAULT_ENDPOINTS: Mapping[Backend, str] = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class BodyTemplate:
    """What all requests of a run have in common. `extra` wins over every field set here; objects are merged."""

    backend: Backend
    model: str
    sampling: Mapping[str, float] = field(default_factory=dict)
    logprobs: int | None = None
    ignore_eos: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def render(self, said: Sequence[Content], output_len: int) -> bytes:
        """The request body as JSON. `said` is the conversation so far: prompt, answer, prompt, ...

        A completions endpoint gets it as one text, if it is more than one prompt.
        """
        body: dict[str, Any] = {"model": self.model, **self._prompt_fields(said, output_len)}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= self.sampling
        if self.logprobs is not None:
            chat = {"logprobs": True, "top_logprobs": self.logprobs}
            body |= {"logprobs": self.logprobs} if self.backend == "openai" else chat
        if self.ignore_eos:
            body["ignore_eos"] = True
        for name, value in self.extra.items():
            merges = isinstance(value, dict) and isinstance(body.get(name), dict)
            body[name] = body[name] | value if merges else value
        return json.dumps(body).encode()

    def _prompt_fields(self, said: Sequence[Content], output_len: int) -> dict[str, Any]:
        if self.backend == "openai":
            prompt = said[0] if len(said) == 1 else "\n".join(map(str, said))
            return {"prompt": prompt, "max_tokens": output_len}
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
        return {"messages": messages, "max_completion_tokens": output_len}


class _Function(BaseModel):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(BaseModel):
    function: _Function | None = None


class _Delta(BaseModel):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None

    def output(self) -> str:
        calls = [call.function for call in self.tool_calls or () if call.function]
        parts = [self.content, self.reasoning, self.reasoning_content, self.refusal]
        return "".join(part for part in parts + [p for call in calls for p in (call.name, call.arguments)] if part)


class _Choice(BaseModel):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Error(BaseModel):
    message: str | None = None


class StreamEvent(BaseModel):
    """One `data:` payload of a completion or chat stream. Unknown fields are ignored; every known one may lack."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: _Error | str | None = None
    object: str | None = None
    message: str | None = None

    @property
    def text(self) -> str:
        """What the model said here: text, content, reasoning, refusal or tool call; empty for a role-only chunk."""
        choices = self.choices or ()
        return "".join((choice.text or "") + (choice.delta.output() if choice.delta else "") for choice in choices)

    @property
    def finishes(self) -> bool:
        """Whether a choice ends with this event."""
        return any(choice.finish_reason for choice in self.choices or ())

    @property
    def error_message(self) -> str | None:
        """The error that this event reports, nested as OpenAI does or flat, None if it is no error."""
        if isinstance(self.error, str):
            return self.error
        if self.error is not None:
            return self.error.message or "error without a message"
        return self.message or "error without a message" if self.object == "error" else None


def error_text(body: bytes) -> str:
    """The message inside an error answer's body, or the start of the body itself."""
    try:
        message = StreamEvent.model_validate_json(body).error_message
    except ValidationError:
        message = None
    return message or body[:200].decode("utf-8", errors="replace")
