"""One choice of a generation: events in, deltas of text out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from scheduler.request import Finish, TokenEvent, TokenLogprob
from server.choice_text import ChoiceText, Echo, Piece
from server.observer import RequestObserver
from server.protocol.responses import FinishReason


@dataclass(frozen=True, slots=True)
class End:
    """Why a choice is over. `stop_reason`: the stop string or stop token id that ended it, if one did."""

    reason: FinishReason
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class PromptView:
    """The prompt of a choice as ids, and their logprobs where asked for."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of choice `index`. `offset`: characters that the pieces of earlier deltas covered.

    `prompt` is on a choice's first delta, if it is to be shown.
    """

    index: int
    text: str
    pieces: tuple[Piece, ...] = ()
    offset: int = 0
    is_first: bool = True
    end: End | None = None
    prompt: PromptView | None = None

    @staticmethod
    def joined(deltas: Sequence[Delta]) -> Delta:
        """All deltas of one choice as one."""
        pieces = tuple(piece for delta in deltas for piece in delta.pieces)
        text = "".join(delta.text for delta in deltas)
        return Delta(deltas[0].index, text, pieces, end=deltas[-1].end, prompt=deltas[0].prompt)


class Choice:
    """Follows one choice until it ends: by a stop string, which the engine does not know of, or by the engine."""

    def __init__(self, index: int, text: ChoiceText, observer: RequestObserver) -> None:
        self._index = index
        self._text = text
        self._observer = observer
        self._last_heard = time.monotonic()
        self._offset = 0
        self._is_first = True
        self._end: End | None = None
        self._prompt: PromptView | None = None
        self._is_closed = False

    @property
    def has_ended(self) -> bool:
        """Whether its text is complete. The engine may not know yet."""
        return self._end is not None

    @property
    def num_tokens(self) -> int:
        """Tokens so far, the one that completed a stop string included."""
        return self._text.num_tokens

    def put_in_front(self, echo: Echo) -> None:
        """Begin the text with the prompt."""
        self._text.put_in_front(echo)

    def show_prompt(self, prompt: PromptView) -> None:
        """Tell of the prompt in the first delta."""
        self._prompt = prompt

    def absorb(self, event: TokenEvent) -> Delta | None:
        """What `event` allows to show, if anything. The choice must not have ended."""
        self._measure(len(event.tokens))
        stops = event.finish is not None and event.finish.reason == "stop"
        for number, (token, logprob) in enumerate(zip_longest(event.tokens, event.logprobs), start=1):
            self._text.push(token, logprob, is_end=stops and number == len(event.tokens))
            if self._text.stop_string is not None:
                break
        if self._text.stop_string is not None or event.finish is not None:
            self._text.end()
            self._end = self._why(event.finish)
        text, pieces = self._text.take()
        if not (text or pieces or self._end is not None):
            return None
        prompt = self._prompt if self._is_first else None
        delta = Delta(self._index, text, pieces, self._offset, self._is_first, self._end, prompt)
        self._offset += sum(len(piece.text) for piece in pieces)
        self._is_first = False
        return delta

    def close(self, finish: Finish | None) -> None:
        """Book the end. `finish` None: given up before the engine could end it. Only the first call counts."""
        if self._is_closed:
            return
        self._is_closed = True
        reason = self._end.reason if self._end is not None else "abort" if finish is None else finish.reason
        self._observer.choice_ended(reason, self.num_tokens, None if finish is None else finish.timings)

    def _why(self, finish: Finish | None) -> End:
        if self._text.stop_string is not None:
            return End("stop", self._text.stop_string)
        assert finish is not None, "neither the text nor the engine ended the choice"
        return End("length" if finish.reason == "length" else "stop", finish.stop_token)

    def _measure(self, num_tokens: int) -> None:
        if num_tokens:
            now = time.monotonic()
            self._observer.tokens_came(num_tokens, now - self._last_heard, first=self.num_tokens == 0)
            self._last_heard = now
