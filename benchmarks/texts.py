"""Passages of real text."""

from __future__ import annotations

from collections.abc import Iterator

from models.essays import essays
from models.tokenizer import Tokenizer


def passages(tokenizer: Tokenizer, lengths: list[int]) -> Iterator[tuple[int, ...]]:
    """One passage of token ids per length, each from another essay as far as they reach."""
    texts = essays()
    for number, length in enumerate(lengths):
        ids = tokenizer.encode(texts[number % len(texts)][: 8 * length])
        start = 0 if number < len(texts) else length
        yield tuple(ids[start : start + length])
