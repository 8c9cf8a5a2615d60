"""From the tokens of one choice to text that may be shown, with each token's share of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from scheduler.request import TokenLogprob
from server.detokenizer import Detokenizer
from server.ports import Tokenizer
from server.stop_strings import StopStrings


@dataclass(frozen=True, slots=True)
class Piece:
    """A token and what it adds to the text.

    Joined over a choice, `text` gives the choice's text: a character that several tokens make up belongs to the one
    that completes it, and what a stop string hides belongs to none. `data`: the bytes behind it, `num_open` of them
    being the beginning of a character that is not complete yet. `is_prompt`: echoed, not generated.
    """

    token: int
    text: str
    data: bytes
    num_open: int = 0
    logprob: TokenLogprob | None = None
    is_prompt: bool = False


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as text, to be put in front of its continuations; `open_bytes` begin a character that they complete."""

    pieces: tuple[Piece, ...]
    open_bytes: bytes = b""

    @property
    def text(self) -> str:
        """The prompt's text."""
        return "".join(piece.text for piece in self.pieces)

    def with_logprobs(self, logprobs: Iterable[TokenLogprob | None]) -> Echo:
        """The same with the prompt's logprobs, one per token."""
        pairs = zip(self.pieces, logprobs, strict=True)
        return replace(self, pieces=tuple(replace(piece, logprob=logprob) for piece, logprob in pairs))


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How tokens become text. `pieces`: whether the share of each token is wanted, for logprobs."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    pieces: bool = False


class TokenBytes:
    """The bytes that tokens add to a text, none for special ones that are skipped: all but those spelled `kept`."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool, kept: Collection[str] = ()) -> None:
        self._bytes = tokenizer.token_bytes
        skipped = tokenizer.special_ids if skip_special else ()
        self._skipped: Collection[int] = frozenset(
            token for token in skipped if not kept or tokenizer.token_bytes(token).decode(errors="replace") not in kept
        )

    def __getitem__(self, token: int) -> bytes:
        return b"" if token in self._skipped else self._bytes(token)


class ChoiceText:
    """The text of one choice. Push tokens, take what may be shown; `end` releases what was held back."""

    def __init__(self, token_bytes: TokenBytes, options: TextOptions) -> None:
        self._token_bytes = token_bytes
        self._options = options
        self._detokenizer = Detokenizer()
        self._stops = StopStrings(options.stop, include=options.include_stop)
        self._shown: list[str] = []
        self._pieces: list[Piece] = []
        self._room = 0  # characters shown whose pieces have not been taken
        self._is_over = False
        self.num_tokens = 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.found

    def put_in_front(self, echo: Echo) -> None:
        """Begin with the prompt's text. To be called before anything else."""
        self._shown.append(echo.text)
        self._pieces.extend(echo.pieces if self._options.pieces else ())
        self._detokenizer.push(echo.open_bytes)

    def push(self, token: int, logprob: TokenLogprob | None = None, *, is_end: bool = False) -> None:
        """Add a token. `is_end`: it is the one that ended the choice, and shown only together with stop strings."""
        data = b"" if is_end and not self._options.include_stop else self._token_bytes[token]
        text = self._detokenizer.push(data)
        self.num_tokens += 1
        if self._options.pieces:
            self._pieces.append(Piece(token, text, data, self._detokenizer.num_pending, logprob))
        self._show(text)

    def end(self) -> None:
        """The choice has ended; nothing is held back any longer."""
        if self.stop_string is None:
            tail = self._detokenizer.flush()
            if tail and self._pieces:
                self._pieces[-1] = replace(self._pieces[-1], text=self._pieces[-1].text + tail)
            self._show(tail)
        self._shown.append(self._stops.flush())
        self._is_over = True

    def take(self) -> tuple[str, tuple[Piece, ...]]:
        """What may be shown since the last call, and the tokens behind it."""
        text = "".join(self._shown)
        self._shown.clear()
        self._room += len(text)
        return text, tuple(self._take_pieces())

    def _show(self, text: str) -> None:
        self._shown.append(self._stops.push(text, may_stop=self.num_tokens >= self._options.min_tokens))

    def _take_pieces(self) -> list[Piece]:
        taken, covered = 0, 0
        while taken < len(self._pieces) and covered + len(self._pieces[taken].text) <= self._room:
            covered += len(self._pieces[taken].text)
            taken += 1
        if not (self._is_over and taken == len(self._pieces)):
            # The beginning of a character goes with its end, which may turn out to be hidden.
            while taken and self._pieces[taken - 1].num_open:
                taken -= 1
        pieces, self._pieces = self._pieces[:taken], self._pieces[taken:]
        self._room -= sum(len(piece.text) for piece in pieces)
        return pieces + self._cut_rest() if self._is_over else pieces

    def _cut_rest(self) -> list[Piece]:
        """The pieces that a stop string hides, wholly or from some character on."""
        rest = []
        for piece in self._pieces:
            visible = min(len(piece.text), self._room)
            self._room -= visible
            rest.append(_cut(piece, visible))
        self._pieces = []
        return rest


def _cut(piece: Piece, length: int) -> Piece:
    """`piece` with only the first `length` characters of its text visible."""
    num_hidden = len(piece.text[length:].encode()) + piece.num_open
    return replace(piece, text=piece.text[:length], data=piece.data[: max(0, len(piece.data) - num_hidden)])
