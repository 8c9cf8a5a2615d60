"""What prompts are made of: token ids, words, or slices of a text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tokenizers import Encoding, Tokenizer

from client.errors import BenchError
from client.prompts import Content

CHARS_PER_TOKEN = 4
"""Of English text; the estimate where no tokenizer is given."""

_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water "
    "room mother area money story fact month lot right study book eye job word business issue side kind head "
    "house service friend father power hour game line end member law car city name team minute idea body back "
    "parent face level"
)


@dataclass(frozen=True, slots=True)
class Material:
    """A source of content with its own dice: the same seed gives the same prompts.

    `as_ids`: the endpoint takes token ids, so prompts may be ids. `tokenizer` makes lengths of text exact.
    """

    rng: np.random.Generator
    as_ids: bool
    tokenizer: Tokenizer | None = None

    def ids(self, size: int, vocab_size: int) -> list[int]:
        """Ids below `vocab_size`. The lowest tenth is left out: special tokens and bytes live there."""
        return [int(token) for token in self.rng.integers(vocab_size // 10, vocab_size, size)]

    def words(self, size: int) -> str:
        """English words: one a token, cut to the exact length where there is a tokenizer."""
        text = " ".join(self.rng.choice(_WORDS.split(), size))
        if self.tokenizer is None:
            return text
        return text[: self.tokenizer.encode(text, add_special_tokens=False).offsets[size - 1][1]]

    def count(self, text: str) -> int:
        """The tokens of `text`, at least 1; an estimate without a tokenizer."""
        if self.tokenizer is None:
            return max(1, len(text) // CHARS_PER_TOKEN)
        return max(1, len(self.tokenizer.encode(text, add_special_tokens=False).ids))

    def book(self, path: Path, longest: int) -> Book:
        """The text file `path`, to cut slices of up to `longest` tokens from. Raises BenchError if it cannot be had."""
        text = read_text(path)
        book = Book(text, self.tokenizer.encode(text, add_special_tokens=False) if self.tokenizer else None)
        if book.num_tokens < longest:
            raise BenchError(
                f"--dataset-path: {path} has about {book.num_tokens} tokens, prompts may need {longest}: "
                "take a longer file or lower --input-len"
            )
        return book


@dataclass(frozen=True, slots=True)
class Book:
    """A text to cut slices from; `encoding` is None without a tokenizer."""

    text: str
    encoding: Encoding | None = field(repr=False)

    @property
    def num_tokens(self) -> int:
        """Its length, estimated without a tokenizer."""
        return len(self.encoding.ids) if self.encoding else len(self.text) // CHARS_PER_TOKEN

    def slice(self, rng: np.random.Generator, size: int, *, as_ids: bool = False) -> Content:
        """`size` tokens from a random place, as ids if `as_ids` and there is a tokenizer."""
        first = int(rng.integers(self.num_tokens - size + 1))
        if self.encoding is None:
            return self.text[first * CHARS_PER_TOKEN : (first + size) * CHARS_PER_TOKEN]
        if as_ids:
            return list(self.encoding.ids[first : first + size])
        return self.text[self.encoding.offsets[first][0] : self.encoding.offsets[first + size - 1][1]]


def read_text(path: Path) -> str:
    """The file `path`. Raises BenchError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--dataset-path: cannot read {path}: {error}") from error


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads a tokenizer.json, or the one in the folder `path`. Raises BenchError if there is none."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for anything that is wrong with the file
        raise BenchError(f"--tokenizer: cannot read {file}: {error}") from error
