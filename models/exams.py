"""Exams about a text, to see what a model still knows of it once most of its rows are gone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from models.tokenizer import Tokenizer

_FACTS = 4  # in a text
_CONTINUED = 96  # tokens at a passage's end that are to be foretold
_THINGS = ("access code", "ticket number", "locker number", "lucky number", "account number", "secret key")
_NAMES = (
    "Alice Boris Carla Deniz Elena Fritz Grace Hassan Irene Jonas Kenji Laura Mateo Nadia Oscar Priya Quentin Rosa "
    "Samir Tanja Umberto Vera Wanda Xavier Yusuf Zoe"
)


@dataclass(frozen=True, slots=True)
class Question:
    """What follows a text, as token ids: `asked`, then `answer`, whose likelihood counts."""

    asked: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exam:
    """A `text` as token ids; `facts` that stand in it, asked for; and how it goes on."""

    text: tuple[int, ...]
    facts: tuple[Question, ...]
    continuation: Question

    @property
    def questions(self) -> tuple[Question, ...]:
        """All of them, the continuation last."""
        return (*self.facts, self.continuation)


def make_exam(tokenizer: Tokenizer, passage: Sequence[int], seed: str) -> Exam:
    """`passage`, which begins as the model expects, with a number planted in each quarter.

    Its last tokens are left out of the text, to be foretold.
    """
    chance = random.Random(seed)
    body, rest = list(passage[: -_CONTINUED - 1]), tuple(passage[-_CONTINUED - 1 :])
    ends = [place + 1 for place, token in enumerate(body) if tokenizer.token_bytes(token).endswith(b".")]
    quarter = len(body) / _FACTS
    facts = []
    for number, name in reversed(list(enumerate(chance.sample(_NAMES.split(), _FACTS)))):
        thing, value = chance.choice(_THINGS), chance.randrange(10_000, 100_000)
        start = f" The {thing} of {name} is"
        wanted = int((number + chance.random()) * quarter)
        place = _nearest(ends, wanted)
        body[place:place] = tokenizer.encode(f"{start} {value}.", add_special_tokens=False)
        facts.append(_question(tokenizer, f"\n\nQuestion: What is the {thing} of {name}?\nAnswer:{start}", f" {value}"))
    return Exam(tuple(body), tuple(facts), Question(rest[:1], rest[1:]))


def _nearest(places: Sequence[int], wanted: int) -> int:
    return min(places, key=lambda place: abs(place - wanted), default=wanted)


def _question(tokenizer: Tokenizer, asked: str, answer: str) -> Question:
    """A space that is a token of its own is no part of the answer."""
    asked_ids, answer_ids = (tuple(tokenizer.encode(text, add_special_tokens=False)) for text in (asked, answer))
    if tokenizer.token_bytes(answer_ids[0]) == b" ":
        asked_ids, answer_ids = asked_ids + answer_ids[:1], answer_ids[1:]
    return Question(asked_ids, answer_ids)
