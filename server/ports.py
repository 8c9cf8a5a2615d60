"""What the edge needs from the engine and the tokenizer: all that it knows of either."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from scheduler.request import GenerationRequest, TokenEvent
from scheduler.stats import EngineStats


class TokenStream(Protocol):
    """Events of one request; see `scheduler.stream.TokenStream`."""

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """Yields until every choice had its terminal event."""

    def stop(self, index: int) -> None:
        """End choice `index`: its text reached a stop string."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Aborts whatever has not ended."""


class Engine(Protocol):
    """Runs requests; see `scheduler.engine.AsyncEngine`."""

    @property
    def max_model_len(self) -> int:
        """The most tokens, prompt and continuation together, that a sequence can have."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a sequence."""

    async def start(self) -> None:
        """Begin to run what is submitted."""

    async def stop(self) -> bool:
        """End every stream with an error event, and the engine with it; False if a step does not end in time."""

    def submit(self, request: GenerationRequest) -> TokenStream:
        """Queue `request`. Raises `scheduler.errors.EngineError` if it is refused."""

    def unhealthy_reason(self) -> str | None:
        """Why no request would make progress now; None if all is well."""

    async def death(self) -> str:
        """Wait until the engine has ended, for good; returns why."""

    def begin_drain(self) -> None:
        """Take nothing new from now on."""

    async def drained(self, seconds: float) -> bool:
        """Wait until nothing is left, at most `seconds`; then end the rest with error events and return False."""

    def stats(self) -> EngineStats:
        """Gauges and totals now."""


class Tokenizer(Protocol):
    """Text to ids and back; see `models.tokenizer.Tokenizer`. Called from several threads at once."""

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to this, exclusive."""

    @property
    def special_ids(self) -> Collection[int]:
        """Ids that control the model and are no text."""

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if there is one."""

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, if there is one."""

    @property
    def chat_template(self) -> str | None:
        """The template that conversations are rendered with."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`."""

    def token_bytes(self, token: int, /) -> bytes:
        """The bytes that a token adds to the text, maybe a part of a character."""

    def token_string(self, token: int, /) -> str:
        """The token's name in the vocabulary."""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Ids of a conversation. Raises `models.errors.ChatTemplateError` if the template refuses it."""
