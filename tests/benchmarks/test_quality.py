"""What the quality benchmark drives is the engine: its logprobs, its budgets, and rows that are copied unharmed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import quality_texts
from benchmarks.forced import Fed, Feed
from benchmarks.quality_cases import measure
from benchmarks.quality_engine import Engine, Subject, Variant, alike
from benchmarks.quality_generation import agreement, long_texts, repeated
from benchmarks.quality_record import Record, means, read, write
from benchmarks.quality_table import report
from benchmarks.quality_texts import Case, FactKind, fact_cases
from models.checkpoint import Checkpoint
from models.loader import load_model
from models.tokenizer import Tokenizer
from scheduler.request import GenerationRequest, SamplingParams, TokenLogprob
from tests.models.tiny import prompt, saved, tiny_llama

FULL, H2O, STREAMING = Variant("full"), Variant("h2o"), Variant("streaming", "global")
PAPER = Variant("scissorhands-paper")


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A tiny model without a calibration."""
    checkpoint = Checkpoint(saved(tiny_llama(), tmp_path_factory.mktemp("llama")))
    return Subject(checkpoint, load_model(checkpoint, torch.float32), None)


def _engine(subject: Subject, *variants: Variant) -> Engine:
    return Engine(subject, variants, "float32", 2000)


def _read(engine: Engine, tokens: list[int], driver: str) -> Fed:
    fed = engine.forced.begin(driver, engine.num_lanes)
    engine.forced.feed([Feed(fed, tokens)])
    return fed


def _logprobs(engine: Engine, fed: Fed, tokens: list[int]) -> list[float]:
    (scored,) = engine.forced.feed([Feed(fed, tokens[:-1], tokens[1:])])
    return [entry.logprob for entry in scored]


def _by_scheduler(engine: Engine, tokens: list[int]) -> list[TokenLogprob | None]:
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    engine.scheduler.add(GenerationRequest("0", tuple(tokens), params))
    while (plan := engine.scheduler.plan()) is not None:
        engine.scheduler.apply(engine.runner.execute(plan))
    ((_, event),) = engine.scheduler.take_events()
    return list(event.prompt_logprobs or ())


def test_without_eviction_logprobs_are_those_that_the_scheduler_gets(subject: Subject) -> None:
    engine, tokens = _engine(subject, FULL), prompt(150)
    fed = _read(engine, tokens[:60], "full")
    expected = [entry.logprob for entry in _by_scheduler(engine, tokens)[61:] if entry is not None]
    np.testing.assert_allclose(_logprobs(engine, fed, tokens[60:]), expected, atol=1e-5)


def test_a_copy_of_a_sequence_goes_on_as_the_sequence_does(subject: Subject) -> None:
    engine, tokens = _engine(subject, H2O), prompt(120)
    fed = _read(engine, tokens[:100], "h2o")
    copy = engine.forced.restore(engine.forced.save(fed), "h2o", engine.num_lanes)
    for each in (fed, copy):
        engine.forced.compress(each, 0.5)
    assert np.array_equal(fed.table.kept, copy.table.kept)
    assert _logprobs(engine, fed, tokens[100:]) == pytest.approx(_logprobs(engine, copy, tokens[100:]), abs=1e-5)


@pytest.mark.parametrize("variant", [H2O, STREAMING])
def test_a_prompt_is_compressed_to_its_budget(subject: Subject, variant: Variant) -> None:
    engine = _engine(subject, variant)
    fed = _read(engine, prompt(200), str(variant))
    engine.forced.compress(fed, 0.4)
    assert fed.rows_per_lane == 80
    engine.forced.compress(fed, 0.4)
    assert fed.rows_per_lane == 80


def test_a_policy_that_compresses_while_it_reads_never_exceeds_its_budget(subject: Subject) -> None:
    engine = _engine(subject, PAPER)
    fed = engine.forced.begin(str(PAPER), engine.num_lanes)
    engine.forced.read(fed, prompt(200), 0.3)
    assert fed.seen == 200
    assert fed.rows_per_lane <= 60


def test_ended_sequences_leave_their_pages(subject: Subject) -> None:
    engine = _engine(subject, STREAMING, FULL)
    allocator = engine.scheduler.memory.allocator
    before = allocator.num_free
    case = Case("numbers", tuple(prompt(180)), tuple(prompt(5, seed=1)), tuple(prompt(3, seed=2)), (7, 8))
    records = list(measure(engine, [case], [1.0, 0.5, 0.3], lambda count: None))
    assert allocator.num_free == before
    assert [(record.variant, record.share) for record in records] == [
        ("streaming, global", 0.5),
        ("streaming, global", 0.3),
        ("full", 1.0),
    ]
    assert [round(record.figures["kept"], 1) for record in records] == [0.5, 0.3, 1.0]


def test_only_greedy_answers_count_as_found(subject: Subject) -> None:
    engine, start = _engine(subject, FULL), tuple(prompt(40))
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    engine.scheduler.add(GenerationRequest("0", start, params))
    drawn: list[int] = []
    while (plan := engine.scheduler.plan()) is not None:
        engine.scheduler.apply(engine.runner.execute(plan))
        for _, event in engine.scheduler.take_events():
            drawn.extend(event.tokens)
    right = Case("numbers", start[:30], (), start[30:], tuple(drawn))
    wrong = Case("numbers", start[:30], (), start[30:], (*drawn[:-1], (drawn[-1] + 1) % 100))
    records = list(measure(engine, [right, wrong], [], lambda count: None))
    assert [record.figures["found"] for record in records] == [1.0, 0.0]


def test_policies_share_what_was_read_only_where_their_notes_are_alike(subject: Subject) -> None:
    variants = [FULL, STREAMING, H2O, Variant("keydiff"), Variant("h2o", "global"), Variant("kvc")]
    assert list(alike(subject, variants)) == [
        (STREAMING, Variant("keydiff"), FULL),
        (H2O, Variant("h2o", "global")),
        (Variant("kvc"),),
    ]
    assert list(alike(subject, [FULL])) == [(FULL,)]


def test_answers_under_a_budget_are_compared_with_those_of_the_full_cache(subject: Subject) -> None:
    records = list(agreement(_engine(subject, STREAMING), [tuple(prompt(150))], [1.0, 0.4], 8))
    assert [(record.variant, record.share) for record in records] == [("full", 1.0), ("streaming, global", 0.4)]
    assert records[0].figures == {"until": 1.0, "equal": 1.0}
    assert 0.0 <= records[1].figures["until"] <= 1.0


def test_long_texts_are_judged_by_the_full_cache(subject: Subject) -> None:
    records = list(long_texts(_engine(subject, STREAMING), [tuple(prompt(20))], 40, 0))
    assert [record.variant for record in records] == ["full", "streaming, global"]
    assert records[0].figures == records[1].figures, "too short for an eviction, so the texts are the same"


def test_what_was_there_before_is_counted_as_repeated() -> None:
    assert repeated([1, 2, 3, 4, 5, 6]) == 0
    assert repeated([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)
    assert repeated([1, 2]) == 0


def test_perplexities_are_ratios_to_the_full_cache(tmp_path: Path) -> None:
    records = [
        Record("text", 1024, "float32", "full", 1.0, {"nll": 3.0}),
        Record("text", 1024, "float32", "h2o", 0.2, {"nll": 3.1}),
        Record("text", 1024, "float32", "h2o", 0.2, {"nll": 3.3}),
        Record("text", 1024, "int8", "h2o", 0.2, {"nll": 3.0}),
    ]
    write(tmp_path / "a.json", records[:2])
    write(tmp_path / "b.json", records[2:])
    loaded = read([tmp_path / "a.json", tmp_path / "b.json"])
    assert loaded == records
    found = means(loaded, "text", 1)
    assert found["float32", "h2o", 0.2]["ratio"] == pytest.approx(np.exp(0.2))
    assert found["int8", "h2o", 0.2]["ratio"] == pytest.approx(1.0)
    assert "| h2o; float32 rows  |       | 1.221 |" in report(loaded)


@pytest.mark.model
@pytest.mark.parametrize("kind", ["numbers", "words", "several"])
def test_facts_stand_in_held_out_essays_and_only_there(
    kind: FactKind, default_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.from_folder(default_model_folder)
    texts = [f"This is essay {number}. It has short sentences. " * 60 for number in range(4)]
    monkeypatch.setattr(quality_texts, "essays", lambda: texts)
    for case in fact_cases(tokenizer, kind, 300, 4, 0, ("after", "before")):
        told, answer = tokenizer.decode(case.prompt), tokenizer.decode(case.answer).strip()
        assert len(case.prompt) == 300
        assert told.count(f" is {answer}.") == 1
        assert "essay 3" in told
        assert not any(f"essay {number}" in told for number in range(3))
        assert answer not in tokenizer.decode(case.late + case.asked)
        assert bool(case.late) == case.task.endswith("before")
