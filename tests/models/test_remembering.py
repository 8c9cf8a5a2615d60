"""Exams, and that answering them with some of the rows is what the engine does after an eviction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend

from benchmarks.forced import Feed, Forced
from models.checkpoint import Checkpoint
from models.examiner import Examiner, Marks
from models.exams import Exam, Question, make_exam
from models.loader import load_model
from models.runner import ModelRunner
from models.tokenizer import Tokenizer
from paged_kv.allocator import PageAllocator
from paged_kv.backend import load_backend
from paged_kv.batch import TableMirror
from paged_kv.eviction import EvictionDriver
from paged_kv.format import load_format
from paged_kv.lanes import LaneProfile
from paged_kv.policy import load_policy
from paged_kv.pool import KVPool
from scheduler.budget import EvictionRules
from tests.models.tiny import prompt, saved, tiny_llama

SHARE = 0.5
PROFILE = LaneProfile(
    torch.tensor([0.25, 0.5]), torch.tensor([[0.2, 0.3, 0.25, 0.25, 0.1, 0.4], [0.9, 0.3, 0.4, 0.5, 0.6, 0.3]])
)
EXAM = Exam(
    text=tuple(prompt(200, seed=1)),
    facts=(Question((5, 6, 7), (8, 9)), Question((11, 12), (13, 14, 15))),
    continuation=Question((20,), tuple(prompt(9, seed=2))),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return saved(tiny_llama(max_position_embeddings=512), tmp_path_factory.mktemp("model"))


def losses_of_the_engine(folder: Path, policy_name: str, profile: LaneProfile | None) -> list[list[float]]:
    """For each question of EXAM by itself: minus the log-likelihoods of its answer's tokens, after an eviction."""
    model, policy = load_model(Checkpoint(folder)), load_policy(policy_name)
    config, defaults = model.config, load_policy(policy_name).defaults
    pool = KVPool(400, 8, config.head_dim, load_format("float32"), policy.observation)
    mirror = TableMirror(1, config.num_layers, config.num_kv_heads, 8)
    lanes = "uniform" if profile is None else "profile"
    driver = EvictionDriver(policy, defaults.sinks, defaults.recent, lanes, config.num_kv_heads, defaults.pool, profile)
    runner = ModelRunner(model, pool, mirror, load_backend("reference", config.head_dim), {"it": driver})
    rules = EvictionRules(defaults.sinks + defaults.recent + 1, 0.25, False, False)
    forced = Forced(runner, pool, mirror, PageAllocator(400), {"it": rules}, range(1), chunk=64)
    found = []
    for question in EXAM.questions:
        fed = forced.begin("it", config.num_lanes)
        forced.read(fed, EXAM.text, 1.0 if profile is None else SHARE)
        tokens = question.asked + question.answer
        (scored,) = forced.feed([Feed(fed, tokens[:-1], tokens[1:])])
        found.append([-entry.logprob for entry in scored[-len(question.answer) :]])
        forced.end(fed)
    return found


@pytest.mark.parametrize("policy", ["scissorhands", "h2o", "snapkv", "keydiff", "streaming"])
@pytest.mark.parametrize("profile", [PROFILE, None], ids=["evicted", "full"])
def test_marks_are_what_the_engine_gives(policy: str, profile: LaneProfile | None, folder: Path) -> None:
    examiner = Examiner(load_model(Checkpoint(folder)), load_policy(policy), SHARE)
    with torch.inference_mode():
        examiner.add(EXAM)
        marks = examiner.marks([0], profile)
    expected = losses_of_the_engine(folder, policy, profile)
    flat = [loss for question in expected for loss in question]
    assert marks.loss == pytest.approx(sum(flat) / len(flat), rel=1e-4)
    assert marks.text == pytest.approx(sum(expected[-1]) / len(expected[-1]), rel=1e-4)


def test_a_fact_counts_as_found_if_each_token_of_it_is_the_likeliest(folder: Path) -> None:
    examiner = Examiner(load_model(Checkpoint(folder)), load_policy("streaming"), SHARE)
    with torch.inference_mode():
        for first in range(0, 120, 4):  # one of 120 tokens is the likeliest answer to the same question
            facts = tuple(Question((5, 6, 7), (token,)) for token in range(first, first + 4))
            examiner.add(Exam(EXAM.text, facts, EXAM.continuation))
        found = [examiner.marks([number], PROFILE).found for number in range(len(examiner))]
        assert sorted(found) == [0.0] * 29 + [0.25]
        assert examiner.marks(range(30), PROFILE).found == pytest.approx(0.25 / 30)


def test_a_mean_is_one_of_each_figure() -> None:
    assert Marks.mean([Marks(1.0, 0.5, 3.0), Marks(2.0, 0.0, 5.0)]) == Marks(1.5, 0.25, 4.0)


SaveTokenizer = Callable[..., Path]


def test_an_exam_asks_for_what_stands_in_its_text(
    byte_level: Callable[[], Backend], save_tokenizer: SaveTokenizer
) -> None:
    tokenizer = Tokenizer.from_folder(save_tokenizer(byte_level()))
    sentences = [f"Sentence {number} says something." for number in range(40)]
    passage = tokenizer.encode(" ".join(sentences), add_special_tokens=False)
    made = make_exam(tokenizer, passage, "it")
    text, rest = tokenizer.decode(made.text), tokenizer.decode(made.continuation.answer)
    assert " ".join(sentences).endswith(tokenizer.decode(made.continuation.asked) + rest)
    assert len(made.facts) == 4
    for fact in made.facts:
        asked, answer = tokenizer.decode(fact.asked), tokenizer.decode(fact.answer)
        assert len(answer) == 5
        assert answer.isdigit()
        question, _, statement = asked.rpartition("\nAnswer:")
        thing = question.removeprefix("\n\nQuestion: What is the ").removesuffix("?")
        assert statement == f" The {thing} is "
        assert text.count(f".{statement}{answer}.") == 1  # behind the end of a sentence
        text = text.replace(f"{statement}{answer}.", "")
    assert " ".join(sentences) == text + tokenizer.decode(made.continuation.asked) + rest
    assert make_exam(tokenizer, passage, "it") == made
    assert make_exam(tokenizer, passage, "another") != made
