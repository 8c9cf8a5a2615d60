"""Prompts with planted facts that the answer must repeat: whether the server still knows what it read, under load.

Each prompt is filler with sentences such as "The secret number of the town Belmora is 48213." at random places, and
ends with the question for one of them. The report counts the answers that hold the number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from client.errors import BenchError
from client.flags import flag
from client.lengths import Sized, output_len_flag
from client.material import Book, Material
from client.prompts import Prompt, Session
from client.sources import FromFile
from client.values import whole

_STARTS = ("Bel", "Cor", "Dun", "Esk", "Far", "Gal", "Hol", "Ist", "Kel", "Lor", "Mar", "Nor", "Ost", "Pel", "Ros")
_MIDDLES = ("a", "e", "i", "o", "an", "er", "im", "on", "ul")
_ENDS = ("mora", "dale", "wick", "gate", "ford", "stad", "bury", "holm", "ton", "berg", "vale", "mouth")
MAX_FACTS = 100


@dataclass(frozen=True, kw_only=True)
class Facts(FromFile, Sized):
    """See the module."""

    output_len: int = output_len_flag(default=16)
    per_prompt: int = flag(
        "--facts-per-prompt", parse=whole(1), default=1, metavar="N", help="facts in a prompt; one is asked for"
    )

    def sessions(self, count: int, material: Material) -> list[Session]:
        """See `Dataset`."""
        if self.per_prompt > MAX_FACTS:
            raise BenchError(f"--facts-per-prompt may be {MAX_FACTS} at most")
        inputs = self.input_lens(material.rng, count)
        book = material.book(self.path, max(inputs)) if self.path else None
        return [Session((self._prompt(material, book, size),)) for size in inputs]

    def _prompt(self, material: Material, book: Book | None, size: int) -> Prompt:
        rng = material.rng
        names = _names(rng, self.per_prompt)
        numbers = [str(number) for number in rng.integers(10_000, 100_000, self.per_prompt)]
        sentences = [f"The secret number of the town {n} is {x}." for n, x in zip(names, numbers, strict=True)]
        question = f"\n\nWhat is the secret number of the town {names[0]}? The secret number of the town {names[0]} is"
        room = size - material.count(question) - sum(map(material.count, sentences))
        if room < 1:
            raise BenchError(f"--input-len {size} has no room for {self.per_prompt} facts: raise it")
        filler = material.words(room) if book is None else str(book.slice(rng, room))
        text = _plant(rng, filler, sentences) + question
        return Prompt(text, material.count(text), self.output_len, expects=numbers[0])


def _names(rng: np.random.Generator, count: int) -> list[str]:
    """`count` different names of towns."""
    number = len(_STARTS) * len(_MIDDLES) * len(_ENDS)
    return [
        _STARTS[i % len(_STARTS)]
        + _MIDDLES[i // len(_STARTS) % len(_MIDDLES)]
        + _ENDS[i // len(_STARTS) // len(_MIDDLES)]
        for i in map(int, rng.choice(number, count, replace=False))
    ]


def _plant(rng: np.random.Generator, filler: str, sentences: list[str]) -> str:
    """`sentences` at random places between the words of `filler`, in random order."""
    words = filler.split(" ")
    places = sorted(map(int, rng.integers(0, len(words) + 1, len(sentences))))
    order = rng.permutation(len(sentences))
    for place, which in zip(reversed(places), order, strict=True):
        words.insert(place, sentences[int(which)])
    return " ".join(words)


DATASET = Facts
