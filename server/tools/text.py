"""The text around calls: blanks that only part calls from text are nobody's text."""

from __future__ import annotations

from server.tools.events import Event, Said


class Prose:
    """Holds back blanks until it is clear whether text follows them. Without any call, all text comes out as it is."""

    def __init__(self) -> None:
        self._blanks = ""
        self._follows_call = False

    def say(self, text: str) -> list[Event]:
        """What of `text` can be shown."""
        if self._follows_call:
            text = text.lstrip()
            self._follows_call = not text
        whole = self._blanks + text
        shown = whole.rstrip()
        self._blanks = whole[len(shown) :]
        return [Said(shown)] if shown else []

    def call_begins(self) -> None:
        """A call follows: drop what is held."""
        self._blanks = ""
        self._follows_call = True

    def end(self) -> list[Event]:
        """What was held back."""
        blanks, self._blanks = self._blanks, ""
        return [Said(blanks)] if blanks and not self._follows_call else []


def held(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is the beginning of `mark`, but not all of it."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
