"""Finds the end of a JSON object while it is being written."""

from __future__ import annotations


class JsonObject:
    """Push text that begins with a brace until `is_over`. Only brackets and strings are looked at."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def push(self, text: str) -> int:
        """How many characters of `text` belong to the object."""
        for number, character in enumerate(text, start=1):
            self._read(character)
            if self.is_over:
                return number
        return len(text)

    @property
    def is_over(self) -> bool:
        """Whether the object is complete, once it has begun."""
        return self._depth == 0

    def _read(self, character: str) -> None:
        if self._in_string:
            self._in_string = character != '"' or self._is_escaped
            self._is_escaped = character == "\\" and not self._is_escaped
        else:
            self._in_string = character == '"'
            self._depth += (character in "{[") - (character in "}]")
