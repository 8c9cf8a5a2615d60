"""What quality is measured on: essays that neither the calibration nor the choice of its constants has seen.

Calibrations are made from essays()[0::2], the constants of policies were chosen on essays()[1::4]; here are only
essays()[3::4], one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.quality_record import TEXT
from models.essays import essays
from models.tokenizer import Tokenizer

Asked = Literal["after", "before"]
FactKind = Literal["numbers", "words", "several"]
KINDS: tuple[FactKind, ...] = ("numbers", "words", "several")
_TOGETHER = 3  # facts in a prompt of the kind "several"

_CITIES = (
    "Lisbon Oslo Cairo Lima Kyoto Dublin Quito Riga Accra Hanoi Bergen Turin Malmo Perth Davao Leeds Porto Tunis Varna "
    "Sofia Tampa Omaha Bruges Geneva Naples Seville Madras Denver Zagreb Lahore Nairobi Havana Athens Prague Vienna "
    "Warsaw Boston Munich Toledo Dakar"
)
_WORDS = (
    "walnut anchor violin copper lantern meadow pepper saddle tunnel velvet basket candle dragon engine falcon garden "
    "hammer island jacket kettle ladder marble needle orange pillow rabbit silver temple window yellow bridge castle "
    "desert forest guitar helmet mirror parrot rocket shadow"
)

REQUESTS = (
    "Summarize this text in two sentences.",
    "What is the author's main point?",
    "Write a title for this text.",
    "Which example does the author give?",
    "Explain this to a ten-year-old.",
    "List three claims that the author makes.",
    "Do you agree with the author? Say why.",
    "Write a short reply to the author.",
    "What would a critic say about this?",
    "Turn the text into a list of bullet points.",
    "Which sentence matters most, and why?",
    "What does the author dislike?",
    "What does the author recommend?",
    "Write a tweet about this text.",
    "Who should read this text?",
    "Which words does the author use most?",
    "Give one argument against the text.",
    "How would you continue the text?",
    "What is the tone of this text?",
    "Name the people and companies in the text.",
    "Ask the author three questions.",
    "Write an email that recommends this text to a friend.",
    "What is surprising in this text?",
    "Is the text about money, people or ideas?",
    "Rewrite the first paragraph in simpler words.",
    "What can a student learn from this?",
    "What can a manager learn from this?",
    "Give the text a grade from one to ten, with reasons.",
    "What is left out of this text?",
    "Which part is hardest to understand?",
    "Write a poem of four lines about the text.",
    "What happened first, and what came after?",
    "Compare two things that the text mentions.",
    "What is the strongest argument in the text?",
    "What is the weakest argument in the text?",
    "Write a dialogue between the author and a reader.",
    "Which feeling does the text leave you with?",
    "Translate the main idea into plain advice.",
    "Write a question for an exam about this text.",
    "Answer in one word: what is the text about?",
    "Describe the author in three sentences.",
    "Which facts could be checked?",
    "Make the text sound more formal.",
    "Make the text sound more friendly.",
    "What problem does the text try to solve?",
    "What would you cut from the text?",
    "Write the opposite opinion in three sentences.",
    "Give an example from daily life that fits the text.",
    "What should happen next?",
    "Write a summary for a newspaper.",
)

STORIES = (
    "Write a long story about a lighthouse keeper and the people who visit him.",
    "Write a long travel report about a journey by train through many countries.",
    "Tell me in detail how a small town builds a library, from the first idea to the opening.",
    "Write a long letter from a gardener to a friend about a year in the garden.",
)


@dataclass(frozen=True, slots=True)
class Case:
    """Read `prompt` and `late`, compress, read `asked`; then `answer` should follow. All are token ids.

    Cases with the same `prompt` can share what was read of it.
    """

    task: str
    prompt: tuple[int, ...]
    late: tuple[int, ...]
    asked: tuple[int, ...]
    answer: tuple[int, ...]


def passages(tokenizer: Tokenizer, length: int, count: int) -> list[tuple[int, ...]]:
    """`count` passages of `length` tokens, from all essays that are held out in turn; begun anew when they end."""
    ids = tokenizer.encode("\n\n".join(essays()[3::4]), add_special_tokens=False)
    starts = range(0, len(ids) - length + 1, length)
    return [tuple(ids[start : start + length]) for start in (starts[n % len(starts)] for n in range(count))]


def fact_cases(
    tokenizer: Tokenizer, kind: FactKind, tokens: int, depths: int, seed: int, when: Sequence[Asked]
) -> Iterator[Case]:
    """A prompt of `tokens` tokens for each depth, with facts planted that are asked for after or before compression."""
    chance = random.Random(f"{seed} {kind}")
    numbers = chance.sample(range(depths), depths)  # whoever stops early has seen some of all
    for number, essay in zip(numbers, passages(tokenizer, tokens, depths), strict=True):
        together = _TOGETHER if kind == "several" else 1
        cities = chance.sample(_CITIES.split(), together)
        answers = [_answer(kind, chance) for _ in cities]
        thing = "secret word" if kind == "words" else "special number"
        facts = [
            tokenizer.encode(f" The {thing} of {city} is {answer}.", add_special_tokens=False)
            for city, answer in zip(cities, answers, strict=True)
        ]
        places = [((number + 0.5) / depths + step / together) % 1.0 for step in range(together)]
        prompt = _planted(tokenizer, essay[: tokens - sum(map(len, facts))], dict(zip(places, facts, strict=True)))
        for city, answer in zip(cities, answers, strict=True):
            question = f"\n\nQuestion: What is the {thing} of {city}?"
            cases = _asked(tokenizer, kind, prompt, question, f"\nAnswer: The {thing} of {city} is", answer)
            yield from (cases[each] for each in when)


def text_cases(tokenizer: Tokenizer, tokens: int, continued: int, count: int) -> Iterator[Case]:
    """Passages of `tokens` tokens, and the `continued` tokens that follow."""
    for text in passages(tokenizer, tokens + 1 + continued, count):
        # what the prompt's last token predicts was computed before the compression, so the next one is given
        yield Case(TEXT, text[:tokens], (), text[tokens : tokens + 1], text[tokens + 1 :])


def chats(tokenizer: Tokenizer, count: int, context: int = 400) -> list[tuple[int, ...]]:
    """Up to 50 short chats: a request about `context` tokens of an essay."""
    excerpts = passages(tokenizer, context, min(count, len(REQUESTS)))
    asked = (f"{tokenizer.decode(excerpt)}\n\n{request}" for excerpt, request in zip(excerpts, REQUESTS, strict=False))
    return [tuple(tokenizer.render_chat([{"role": "user", "content": content}])) for content in asked]


def stories(tokenizer: Tokenizer, count: int) -> list[tuple[int, ...]]:
    """Chats that ask for much text."""
    return [tuple(tokenizer.render_chat([{"role": "user", "content": story}])) for story in STORIES[:count]]


def _answer(kind: FactKind, chance: random.Random) -> str:
    return chance.choice(_WORDS.split()) if kind == "words" else str(chance.randrange(10_000, 100_000))


def _planted(tokenizer: Tokenizer, essay: Sequence[int], facts: dict[float, list[int]]) -> tuple[int, ...]:
    """`essay` with each fact at the end of the sentence that is nearest to its depth."""
    ends = [place + 1 for place, token in enumerate(essay) if tokenizer.token_bytes(token).endswith(b".")]
    at = {depth: min(ends, key=lambda end: abs(end - depth * len(essay))) for depth in facts}
    planted = list(essay)
    for depth in sorted(facts, key=lambda depth: -at[depth]):
        planted[at[depth] : at[depth]] = facts[depth]
    return tuple(planted)


def _asked(
    tokenizer: Tokenizer, kind: FactKind, prompt: tuple[int, ...], question: str, start: str, answer: str
) -> dict[Asked, Case]:
    question_ids, start_ids, answer_ids = (
        tuple(tokenizer.encode(text, add_special_tokens=False)) for text in (question, start, f" {answer}")
    )
    if tokenizer.token_bytes(answer_ids[0]) == b" ":
        start_ids, answer_ids = start_ids + answer_ids[:1], answer_ids[1:]
    return {
        "after": Case(f"{kind}, asked after", prompt, (), question_ids + start_ids, answer_ids),
        "before": Case(f"{kind}, asked before", prompt, question_ids, start_ids, answer_ids),
    }
