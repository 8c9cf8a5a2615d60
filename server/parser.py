"""An argument parser whose complaints are one line that says what is right."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """Ends with status 2 and one line on a mistake, without the usage; names the flag that a misspelt one resembles."""

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser`."""
        self.exit(2, f"{self.prog}: error: {message}\n")

    def parse_all(self, arguments: Sequence[str], into: argparse.Namespace | None = None) -> argparse.Namespace:
        """`parse_args` with a better answer to what is no option."""
        parsed, unknown = self.parse_known_args(arguments, into)
        if unknown:
            mistakes = "; ".join(self._unknown(word) for word in unknown)
            self.error(f"{mistakes} ({self.prog} --help lists all)")
        return parsed

    def resembling(self, flag: str) -> str:
        """A question after the known flag that `flag` resembles; empty if there is none."""
        known = [option for action in self._actions for option in action.option_strings]
        match get_close_matches(flag, known, n=1, cutoff=0.7):
            case [closest]:
                return f", did you mean {closest}?"
        return ""

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"{word!r} is one argument too many"
        flag = word.partition("=")[0]
        return f"{flag} is no option{self.resembling(flag)}"


def number(least: int, most: int | None = None) -> Callable[[str], int]:
    """For `type=` of a flag: a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {bounds}")
        return int(text)

    return parse
