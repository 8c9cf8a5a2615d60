"""Token bytes to text as they come: a character appears when it is whole, what can never be one appears at once."""

from __future__ import annotations

import codecs

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Decodes one choice's tokens. Joined, the pieces are what decoding all bytes at once gives.

    Bytes that cannot be UTF-8, and a character cut off at the end, become U+FFFD.
    """

    def __init__(self) -> None:
        self._decoder = _UTF8(errors="replace")

    @property
    def num_pending(self) -> int:
        """Bytes held back as the beginning of a character."""
        return len(self._decoder.getstate()[0])

    def push(self, data: bytes) -> str:
        """The text that `data` completes."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is left of an incomplete character. Call it once, at the end."""
        return self._decoder.decode(b"", final=True)
