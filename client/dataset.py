"""Prompts of given lengths: random token ids, random words, or slices of a text file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from client.errors import BenchError

CHARS_PER_TOKEN = 4
"""Of English text; the estimate where no tokenizer is given."""

_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house service "
    "friend father power hour game line end member law car city name team minute idea body back parent face level"
)

Content = str | list[int]
Draw = Callable[[np.random.Generator, int], Content]


@dataclass(frozen=True, slots=True)
class Prompt:
    """`content` is text or token ids, about `input_len` tokens long; the answer may have `output_len` tokens."""

    content: Content
    input_len: int
    output_len: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens in and out; each is drawn from `mean * (1 - spread) .. mean * (1 + spread)`."""

    input_mean: int
    output_mean: int
    spread: float = 0.0

    def longest_input(self) -> int:
        """The most tokens that a prompt may have."""
        return _bounds(self.input_mean, self.spread)[1]


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads a tokenizer.json, or the one in the folder `path`. Raises BenchError if there is none."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for anything that is wrong with the file
        raise BenchError(f"--tokenizer: cannot read {file}: {error}") from error


def make_prompts(count: int, lengths: Lengths, draw: Draw, seed: int) -> list[Prompt]:
    """`count` prompts, the same for the same seed."""
    rng = np.random.default_rng([seed, 0])
    inputs = _draw_lengths(rng, lengths.input_mean, lengths.spread, count)
    outputs = _draw_lengths(rng, lengths.output_mean, lengths.spread, count)
    return [Prompt(draw(rng, size), size, output) for size, output in zip(inputs, outputs, strict=True)]


def random_ids(vocab_size: int) -> Draw:
    """Token ids below `vocab_size`. The lowest tenth is left out: special tokens and bytes live there."""

    def draw(rng: np.random.Generator, size: int) -> list[int]:
        return [int(token) for token in rng.integers(vocab_size // 10, vocab_size, size)]

    return draw


def random_words(tokenizer: Tokenizer | None) -> Draw:
    """English words: one a token, cut to the exact length where there is a tokenizer."""

    words = _WORDS.split()

    def draw(rng: np.random.Generator, size: int) -> str:
        text = " ".join(rng.choice(words, size))
        if tokenizer is None:
            return text
        return text[: tokenizer.encode(text, add_special_tokens=False).offsets[size - 1][1]]

    return draw


def text_slices(path: Path, lengths: Lengths, tokenizer: Tokenizer | None, *, as_ids: bool) -> Draw:
    """Slices of the file `path` from random places, as token ids if `as_ids` and there is a tokenizer.

    Raises BenchError if the file cannot be read or is shorter than the longest prompt.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--dataset-path: cannot read {path}: {error}") from error
    encoding = tokenizer.encode(text, add_special_tokens=False) if tokenizer else None
    available = len(encoding.ids) if encoding else len(text) // CHARS_PER_TOKEN
    if available < lengths.longest_input():
        raise BenchError(
            f"--dataset-path: {path} has about {available} tokens, prompts may need {lengths.longest_input()}: "
            "take a longer file or lower --random-input-len"
        )

    def draw(rng: np.random.Generator, size: int) -> Content:
        first = int(rng.integers(available - size + 1))
        if encoding is None:
            return text[first * CHARS_PER_TOKEN : (first + size) * CHARS_PER_TOKEN]
        if as_ids:
            return list(encoding.ids[first : first + size])
        return text[encoding.offsets[first][0] : encoding.offsets[first + size - 1][1]]

    return draw


def _bounds(mean: int, spread: float) -> tuple[int, int]:
    return max(1, round(mean * (1 - spread))), round(mean * (1 + spread))


def _draw_lengths(rng: np.random.Generator, mean: int, spread: float, count: int) -> list[int]:
    low, high = _bounds(mean, spread)
    return [int(length) for length in rng.integers(low, high, count, endpoint=True)]
