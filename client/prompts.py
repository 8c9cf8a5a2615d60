"""What a dataset makes: sessions of prompts."""

from __future__ import annotations

from dataclasses import dataclass

Content = str | list[int]


def joined(first: Content, second: Content) -> Content:
    """One after the other; both are text, or both are ids."""
    if isinstance(first, list) and isinstance(second, list):
        return first + second
    return f"{first} {second}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """`content` is text or token ids, about `input_len` tokens long; the answer may have `output_len` tokens.

    `expects` is what a right answer contains, None if any is right. `pause` is how long its user thinks before
    sending it, in seconds.
    """

    content: Content
    input_len: int
    output_len: int
    expects: str | None = None
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """What one user sends: each prompt after the answer to the one before, and with all that was said so far.

    Prompts after the first are text. `due` is when the session began where it was recorded, in seconds, else None.
    """

    prompts: tuple[Prompt, ...]
    due: float | None = None
