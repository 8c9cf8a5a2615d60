"""Runs the engine requests behind one HTTP request, and turns their events into text for whoever answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from scheduler.request import Finish, GenerationRequest, KVUsage, TokenEvent, TokenLogprob, Unsatisfiable
from server.choice_text import ChoiceText, Echo, TextOptions, TokenBytes
from server.errors import ApiError, unsatisfiable
from server.observer import RequestObserver
from server.ports import Engine, TokenStream
from server.protocol.responses import Usage
from server.serving.choice import Choice, Delta, PromptView
from server.serving.merge import merge
from server.serving.usage import usage_of


@dataclass(frozen=True, slots=True)
class Part:
    """One prompt of a job: what the engine is asked, and the prompt's text if it is to be echoed."""

    request: GenerationRequest
    echo: Echo | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What one HTTP request asks to generate, and how tokens become text. `shows_prompt`: its ids are part of it."""

    parts: tuple[Part, ...]
    text: TextOptions
    token_bytes: TokenBytes
    shows_prompt: bool = False


class Generation:
    """A job under way. Enter it to submit, read its deltas, leave it to abort whatever has not ended.

    Entering raises EngineError if the engine refuses any of the requests; then none is left in it. Reading raises
    ApiError if the engine ends a choice with an error. `usage` is complete when the deltas are.
    """

    def __init__(self, job: Job, engine: Engine, observer: RequestObserver) -> None:
        self._job = job
        self._engine = engine
        self._observer = observer
        self._streams = AsyncExitStack()
        self._runs: list[_Run] = []

    @property
    def usage(self) -> Usage:
        """Tokens and cache rows of the whole job so far."""
        return usage_of(
            sum(len(part.request.prompt) for part in self._job.parts),
            sum(run.num_tokens for run in self._runs),
            [usage for run in self._runs for usage in run.kv_usage],
        )

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(self._engine.submit(part.request)) for part in self._job.parts]
            self._streams = stack.pop_all()
        first_index = 0
        for part, stream in zip(self._job.parts, streams, strict=True):
            self._runs.append(_Run(self._job, part, stream, first_index, self._observer))
            first_index += part.request.n
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._streams.aclose()
        for run in self._runs:
            run.close()
        self._observer.request_ended(self.usage)

    async def deltas(self) -> AsyncGenerator[Delta]:
        """What can be shown, as it comes, until every choice has ended."""
        async with aclosing(merge([run.stream for run in self._runs])) as events:
            async for number, event in events:
                for delta in self._runs[number].absorb(event):
                    yield delta


class _Run:
    """One engine request and its choices."""

    def __init__(self, job: Job, part: Part, stream: TokenStream, first_index: int, observer: RequestObserver) -> None:
        request = part.request
        self.stream = stream
        self.kv_usage: list[KVUsage] = []
        self._choices = [
            Choice(first_index + number, ChoiceText(job.token_bytes, job.text), observer) for number in range(request.n)
        ]
        self._part = part
        self._shows_prompt = job.shows_prompt
        self._early: list[TokenEvent] | None = None  # a list while the choices wait for the prompt's logprobs
        if request.params.prompt_logprobs is not None:
            self._early = []
        else:
            self._begin(None)
        observer.request_began(len(request.prompt), request.n, request.params.max_tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices so far."""
        return sum(choice.num_tokens for choice in self._choices)

    def absorb(self, event: TokenEvent) -> Iterator[Delta]:
        """What can be shown now that `event` has come. Raises ApiError if the engine gave up the choice."""
        if event.finish is not None and not self._choices[event.index].has_ended:
            self._raise_on_failure(event.index, event.finish)
        for known in self._ready(event):
            choice = self._choices[known.index]
            delta = None if choice.has_ended else choice.absorb(known)
            if known.finish is not None:
                self.kv_usage.append(known.finish.usage)
                choice.close(known.finish)
            elif delta is not None and delta.end is not None:
                self.stream.stop(known.index)
            if delta is not None:
                yield delta

    def close(self) -> None:
        """No more events will be read."""
        for choice in self._choices:
            choice.close(None)

    def _ready(self, event: TokenEvent) -> list[TokenEvent]:
        """The events that can be shown: none before the prompt's logprobs are known, if they are asked for."""
        if self._early is None:
            return [event]
        self._early.append(event)
        if event.prompt_logprobs is None:
            return []
        self._begin(event.prompt_logprobs)
        ready, self._early = self._early, None
        return ready

    def _begin(self, logprobs: tuple[TokenLogprob | None, ...] | None) -> None:
        """Give the choices the prompt as they are to show it."""
        echo, params = self._part.echo, self._part.request.params
        if echo is not None and logprobs is not None and params.logprobs is not None:
            echo = echo.with_logprobs(_with_fewer(each, params.logprobs) for each in logprobs)
        for choice in self._choices:
            if echo is not None:
                choice.put_in_front(echo)
            if self._shows_prompt:
                choice.show_prompt(PromptView(self._part.request.prompt, logprobs))

    def _raise_on_failure(self, index: int, finish: Finish) -> None:
        if finish.reason in ("error", "abort"):
            self._choices[index].close(finish)
            if isinstance(finish.error, Unsatisfiable):
                raise unsatisfiable(finish.error.message)
            message = finish.error or "the engine gave this request up before it was complete"
            message += f" (request id {self._part.request.sender_id})"
            raise ApiError(message, status=500, kind="server_error", code="generation_failed")


def _with_fewer(logprob: TokenLogprob | None, num_top: int) -> TokenLogprob | None:
    return None if logprob is None else replace(logprob, top=logprob.top[:num_top])
