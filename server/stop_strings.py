"""Finds stop strings in a growing text, and shows of it what cannot become part of one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Watches one choice's text. The first stop string to be complete ends it; of several, the one that began first.

    So the result does not depend on how the text was cut into pieces. `include`: a found stop string is shown.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._include = include
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """What may be shown now that `text` has come. With `may_stop` False no stop string is complete in it.

        After a stop string was `found`, nothing more may be pushed.
        """
        assert self.found is None, "the text is over"
        whole = self._held + text
        match = self._first_match(whole, len(self._held)) if may_stop else None
        if match is not None:
            start, self.found = match
            self._held = ""
            return whole[: start + len(self.found)] if self._include else whole[:start]
        shown = len(whole) - self._num_to_hold(whole)
        self._held = whole[shown:]
        return whole[:shown]

    def flush(self) -> str:
        """What was held back, for a text that ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, whole: str, num_old: int) -> tuple[int, str] | None:
        """Start and stop string of the match that ends first, and beyond the `num_old` characters seen before."""
        matches = []
        for stop in self._stops:
            start = whole.find(stop, max(0, num_old - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start, stop))
        return min(matches)[1:] if matches else None

    def _num_to_hold(self, whole: str) -> int:
        """Length of the longest end of `whole` that is the beginning of a stop string."""
        for start in range(max(0, len(whole) - self._longest + 1), len(whole)):
            end = whole[start:]
            if any(stop.startswith(end) and stop != end for stop in self._stops):
                return len(end)
        return 0
