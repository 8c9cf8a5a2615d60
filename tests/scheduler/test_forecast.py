"""Who may enter beside sequences that will grow."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.budget import EvictionRules
from scheduler.forecast import Forecast
from scheduler.memory import KVMemory
from scheduler.scheduler import Scheduler
from scheduler.sequence import Sequence
from tests.scheduler.fakes import EOS, LANES, PAGE_SIZE, FakeRunner, Outcome, config, request, run, step

GROWTH = 400


def crowd(**changes: object) -> Scheduler:
    """A pool of 250 columns, which twelve prompts of 40 tokens do not fill until they have grown."""
    settings: dict[str, object] = {
        "num_pages": LANES * 250 + 1,
        "max_model_len": 1000,
        "max_num_seqs": 16,
        "default_policy": "lossy",
        "default_budget": 0.25,
        "evict": "always",
        "policies": {"full": None, "lossy": EvictionRules(min_rows=6, drop=0.1)},
    }
    return Scheduler(config(**{**settings, **changes}))


def most_at_once(scheduler: Scheduler, outcome: Outcome) -> int:
    """Run to the end; returns the most sequences that ran in one step."""
    runner, most = FakeRunner(), 0
    while step(scheduler, runner, outcome) is not None:
        most = max(most, scheduler.stats().num_running)
    return most


def decoding(scheduler: Scheduler, name: str, prompt: int, generated: int, **changes: object) -> Sequence:
    """A sequence that has generated so many tokens."""
    sequence = scheduler.add(request(name, prompt, 500, **changes))[0]
    sequence.tokens.extend([7] * generated)
    return sequence


@pytest.mark.parametrize("evict", ["always", "pressure"])
def test_those_let_in_have_room_to_grow(evict: str) -> None:
    scheduler = crowd(evict=evict)
    for number in range(12):
        scheduler.add(request(str(number), 40, GROWTH))
    outcome = Outcome()
    at_the_end = LANES * (0.25 * 1.05 * (40 + GROWTH) / PAGE_SIZE + 0.5)
    most = most_at_once(scheduler, outcome)
    assert int(scheduler.memory.allocator.num_usable / at_the_end) <= most < 12
    assert len(outcome.finished) == 12
    stats = scheduler.stats()
    assert stats.preemptions_total == 0
    if evict == "always":
        assert stats.compressions_total["pressure"] == 0


def test_answers_that_were_short_let_more_in() -> None:
    """Nobody need wait for room that others ask for and never use."""
    scheduler, runner = crowd(), FakeRunner(next_token=lambda work, row: 7 if work.position < 60 else EOS)
    for number in range(80):
        scheduler.add(request(str(number), 10, 900))
    counts, outcome = [], Outcome()
    while step(scheduler, runner, outcome) is not None:
        counts.append(scheduler.stats().num_running)
    assert max(counts[:20]) < 6, "each might go on to its limit"
    assert max(counts) > 10
    assert scheduler.stats().preemptions_total == 0


def test_a_sequence_without_a_budget_counts_as_it_stands() -> None:
    scheduler = crowd(num_pages=LANES * 60 + 1)
    names = [str(number) for number in range(4)]
    for name in names:
        scheduler.add(request(name, 40, 100, kv_policy="full"))
    outcome = Outcome()
    assert most_at_once(scheduler, outcome) == 4
    assert {name for name, _ in outcome.finished} == set(names)


@pytest.mark.parametrize("budget", [0.25, 0.9, 30])
@pytest.mark.parametrize("ceiling", [False, True])
def test_it_is_what_each_sequence_counts_in_those_steps(budget: float, ceiling: bool) -> None:
    """Held to one sequence and one step at a time."""
    rules = EvictionRules(min_rows=20, drop=0.2, ceiling=ceiling)
    scheduler = crowd(policies={"full": None, "lossy": rules})
    memory = KVMemory(scheduler.config)
    sequences = [
        decoding(scheduler, str(number), prompt, generated, kv_budget=budget)
        for number, (prompt, generated) in enumerate([(10, 0), (40, 30), (200, 450), (300, 499)])
    ]
    foretold = Forecast(memory).pages(sequences, [0.0] * len(sequences))
    expected = np.zeros(foretold.size)
    for index in range(foretold.size):
        for sequence in sequences:
            seen, limits = len(sequence.tokens) + 64 * index, sequence.budget
            assert limits is not None
            if seen < sequence.max_len + 64:
                seen = min(seen, sequence.max_len)
                rows = min(seen, (limits.low(seen) + limits.high(seen)) / 2)
                expected[index] += memory.likely(rows)
    assert foretold[0] > 0
    np.testing.assert_allclose(foretold, expected, atol=LANES * len(sequences) / PAGE_SIZE)


def test_a_run_of_every_kind_leaves_nothing_behind() -> None:
    scheduler = crowd()
    for number in range(6):
        scheduler.add(request(f"f{number}", 30, 50, kv_policy="full"))
        scheduler.add(request(f"l{number}", 30, 200))
    assert len(run(scheduler, FakeRunner()).finished) == 12
    assert scheduler.memory.num_available == scheduler.memory.allocator.num_usable
