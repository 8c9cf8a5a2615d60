"""Keeps control tokens that a user typed from becoming real ones when a chat is tokenized."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# A Unicode noncharacter: text has no use for it, and templates pass it through.
BREAK = "\ufdd0"


class ChatGuard:
    """Puts a BREAK inside every control token in values from outside.

    The rendered chat is to be cut at the breaks and its pieces tokenized apart: what was typed then stays text. A BREAK
    that itself came from outside can only part text, never join it.
    """

    def __init__(self, control_tokens: Iterable[str]) -> None:
        spellings = [token for token in control_tokens if len(token) > 1]
        self._first_character = re.compile(f"(?={_any_of(spellings) if spellings else '(?!)'}).", re.DOTALL)

    def guard(self, value: Any) -> Any:
        """A copy of strings, lists and mappings (keys too) in which no control token is left whole."""
        if isinstance(value, str):
            return self._first_character.sub(rf"\g<0>{BREAK}", value)
        if isinstance(value, Mapping):
            return {self.guard(key): self.guard(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return self._guard_parts([self.guard(item) for item in value])
        return value

    def _guard_parts(self, parts: list[Any]) -> list[Any]:
        """Also break tokens that are spelled across text parts, which a template may write without a gap."""
        texts = [part for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if self._first_character.search("".join(part["text"] for part in texts)):
            for part in texts:
                part["text"] += BREAK
        return parts


def _any_of(spellings: Iterable[str]) -> str:
    """A pattern that matches where one of the spellings begins, in time that does not grow with their number."""
    branches: dict[str, list[str]] = {}
    for spelling in spellings:
        branches.setdefault(spelling[:1], []).append(spelling[1:])
    if "" in branches:  # one of them ends here, so it does not matter how longer ones go on
        return ""
    return f"(?:{'|'.join(re.escape(first) + _any_of(rest) for first, rest in branches.items())})"
