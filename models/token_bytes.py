"""The bytes behind a vocabulary's entries: what a tokenizer's decoder does, one token at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

from models.errors import ModelError

_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Bytes per token id, for byte-level and SentencePiece style vocabularies.

    Joined over the ids of a text they give its UTF-8, but for one space in front where `strips_leading_space`: such a
    tokenizer puts a space before every text, and takes it away again when it decodes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(vocabulary.values(), default=-1) + 1
        self._added: Mapping[int, bytes] = {index: token.content.encode() for index, token in added.items()}
        self._pieces: list[str] = [""] * self.size
        for piece, index in vocabulary.items():
            self._pieces[index] = piece
        steps = {step["type"]: step for step in _decoder_steps(tokenizer)}
        self.strips_leading_space = steps.get("Strip", {}).get("start", 0) > 0 or (
            steps.get("Metaspace", {}).get("prepend_scheme", "never") != "never"
        )
        self._byte_fallback = "ByteFallback" in steps
        self._byte_of: Mapping[str, int] = _byte_alphabet() if "ByteLevel" in steps else {}
        if not (self._byte_of or "Metaspace" in steps or self._byte_fallback):
            raise ModelError(f"a tokenizer that decodes by {', '.join(steps) or 'nothing'} is not supported")

    def piece(self, token: int) -> str:
        """The entry as the vocabulary spells it; empty for an id that has none."""
        return self._pieces[token]

    def __getitem__(self, token: int) -> bytes:
        if (content := self._added.get(token)) is not None:
            return content
        piece = self._pieces[token]
        if self._byte_of:
            try:
                return bytes([self._byte_of[character] for character in piece])
            except KeyError:
                return piece.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return piece.replace(_SPACE, " ").encode()


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.decoder is None:
        return []
    decoder: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return steps


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte: itself where it is printable Latin-1, else the next from U+0100 on."""
    return {character: byte for byte, character in enumerate(_alphabet_in_byte_order())}


def _alphabet_in_byte_order() -> Iterator[str]:
    substitute = 0x100
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or (byte >= 0xA1 and byte != 0xAD):
            yield chr(byte)
        else:
            yield chr(substitute)
            substitute += 1
