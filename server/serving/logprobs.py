"""The two shapes of logprobs."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.request import TokenLogprob
from server.choice_text import Piece, TokenBytes
from server.ports import Tokenizer
from server.protocol.responses import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    PromptLogprobs,
    TopLogprob,
)

_LEAST = -9999.0  # OpenAI's figure for "next to impossible"; JSON has no infinity


class LogprobWriter:
    """Writes logprobs of pieces. `skip_special`: special tokens add no text. `as_ids`: tokens are named by number."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._token_bytes = TokenBytes(tokenizer, skip_special=skip_special)

    def completion(self, pieces: Sequence[Piece], offset: int) -> CompletionLogprobs:
        """`offset`: characters of the choice before the first piece."""
        offsets = []
        for piece in pieces:
            offsets.append(offset)
            offset += len(piece.text)
        return {
            "tokens": [f"token_id:{piece.token}" if self._as_ids else piece.text for piece in pieces],
            "token_logprobs": [None if piece.logprob is None else _finite(piece.logprob.logprob) for piece in pieces],
            "top_logprobs": [None if piece.logprob is None else self._by_name(piece.logprob) for piece in pieces],
            "text_offset": offsets,
        }

    def chat(self, pieces: Sequence[Piece]) -> ChatLogprobs:
        """Only generated pieces: a chat has no echo, so each has a logprob."""
        return {"content": [self._drawn(piece) for piece in pieces], "refusal": None}

    def prompt(self, logprobs: Sequence[TokenLogprob | None]) -> list[PromptLogprobs | None]:
        """One entry per token of a prompt: it and its rivals by id. `rank` is null for one that is not among these."""
        return [None if logprob is None else self._ranked(logprob) for logprob in logprobs]

    def _ranked(self, logprob: TokenLogprob) -> PromptLogprobs:
        ranks: dict[int, int | None] = {token: rank for rank, (token, _) in enumerate(logprob.top, start=1)}
        values = dict(logprob.top)
        if logprob.token not in ranks:
            ranks[logprob.token], values[logprob.token] = None, logprob.logprob
        return {
            str(token): {"logprob": _finite(values[token]), "rank": rank, "decoded_token": self._spelled(token)}
            for token, rank in ranks.items()
        }

    def _drawn(self, piece: Piece) -> ChatTokenLogprob:
        assert piece.logprob is not None, "logprobs were asked for"
        return {
            "token": self._name(piece.token),
            "logprob": _finite(piece.logprob.logprob),
            "bytes": list(piece.data),
            "top_logprobs": [self._rival(token, logprob) for token, logprob in piece.logprob.top],
        }

    def _rival(self, token: int, logprob: float) -> TopLogprob:
        return {"token": self._name(token), "logprob": _finite(logprob), "bytes": list(self._token_bytes[token])}

    def _by_name(self, logprob: TokenLogprob) -> dict[str, float]:
        """The drawn token and its rivals. Where two have one name, the likelier stands for it."""
        names: dict[str, float] = {}
        for token, value in (*logprob.top, (logprob.token, logprob.logprob)):
            names.setdefault(self._key(token), _finite(value))
        return names

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self._as_ids else self._spelled(token)

    def _spelled(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode(errors="replace")

    def _key(self, token: int) -> str:
        """The token's text, or its bytes as OpenAI writes them where they are a part of a character."""
        if self._as_ids:
            return f"token_id:{token}"
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
