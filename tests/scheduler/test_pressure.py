"""Sequences that give up rows together when pages run short."""

from __future__ import annotations

from scheduler.request import SamplingParams
from scheduler.scheduler import Scheduler
from tests.scheduler.fakes import LANES, PAGE_SIZE, FakeRunner, Outcome, config, request, run, step

COLUMNS = 42


def crowded(**changes: object) -> tuple[Scheduler, FakeRunner]:
    """A pool in which three prompts of 40 tokens fit whole and have 12 pages per lane to grow."""
    settings = {"num_pages": LANES * COLUMNS + 1, "default_policy": "lossy", "default_budget": 8, **changes}
    return Scheduler(config(**settings)), FakeRunner()


def until_a_contest(scheduler: Scheduler, runner: FakeRunner) -> Outcome:
    """Step until sequences compete, and once more for what they gave."""
    outcome = Outcome()
    while not (runner.plans and runner.plans[-1].contest):
        assert step(scheduler, runner, outcome) is not None
    return outcome


def test_all_sequences_compete_down_to_their_own_budgets() -> None:
    scheduler, runner = crowded()
    sequences = [
        scheduler.add(request(name, 40, 60, kv_budget=budget))[0] for name, budget in (("a", 8), ("b", 12), ("c", 20))
    ]
    until_a_contest(scheduler, runner)
    contest = runner.plans[-1].contest
    assert contest is not None
    assert {member.slot: member.keep_rows for member in contest.members} == {
        sequence.slot: rows * LANES for sequence, rows in zip(sequences, (8, 12, 20), strict=True)
    }
    assert all(member.seen == runner.computed[member.slot] for member in contest.members)
    assert contest.policy == "lossy"


def test_a_share_of_what_can_go_goes_at_once() -> None:
    """Enough to go on for a while, far from all: nobody knows how much will be needed."""
    scheduler, runner = crowded()
    for name in "abc":
        scheduler.add(request(name, 40, 60))
    until_a_contest(scheduler, runner)
    contest = runner.plans[-1].contest
    assert contest is not None
    can_be_given = LANES * COLUMNS - 3 * (LANES * 9 + LANES * (PAGE_SIZE - 1)) // PAGE_SIZE
    assert 0.15 * can_be_given < scheduler.memory.allocator.num_free < 0.35 * can_be_given


def test_who_asked_for_everything_keeps_everything() -> None:
    scheduler, runner = crowded()
    whole = scheduler.add(request("a", 40, 12, kv_policy="full"))[0]
    for name in "bc":
        scheduler.add(request(name, 40, 60))
    outcome = run(scheduler, runner)
    assert any(plan.contest for plan in runner.plans)
    assert all(member.slot != whole.slot for plan in runner.plans if plan.contest for member in plan.contest.members)
    finish = outcome.finished["a", 0].finish
    assert finish is not None
    assert finish.usage.rows_evicted == 0
    assert scheduler.stats().preemptions_total == 0


def test_members_are_of_the_policy_that_can_give_most() -> None:
    scheduler, runner = crowded()
    scheduler.add(request("a", 40, 60, kv_policy="paper", kv_budget=30))
    for name in "bc":
        scheduler.add(request(name, 40, 60))
    until_a_contest(scheduler, runner)
    contest = runner.plans[-1].contest
    assert contest is not None
    assert [member.policy for member in contest.members] == ["lossy", "lossy"]


def test_rows_that_others_read_stay_where_they_are() -> None:
    """Choices share the rows of their prompt; what each has said itself can go."""
    scheduler, runner = crowded(prefix_caching=True)
    scheduler.add(request("a", 40, 80, params=SamplingParams(max_tokens=80, temperature=1.0), n=3))
    outcome = until_a_contest(scheduler, runner)
    contest = runner.plans[-1].contest
    assert contest is not None
    assert [member.pinned for member in contest.members] == [36, 36, 36], "the last token of a prompt is computed anew"
    run(scheduler, runner, outcome)
    assert [len(outcome.tokens["a", index]) for index in range(3)] == [80] * 3
    assert scheduler.stats().preemptions_total == 0


def test_a_step_stops_for_few_sequences_only() -> None:
    count = 24
    changes = {"num_pages": LANES * (6 * count) + 1, "max_num_seqs": count, "max_num_batched_tokens": 100}
    scheduler, runner = crowded(**changes, max_model_len=400)
    for number in range(count):
        scheduler.add(request(str(number), 12, 100))
    run(scheduler, runner)
    sizes = [len(plan.contest.members) for plan in runner.plans if plan.contest]
    assert sizes
    assert max(sizes) == 8
    assert scheduler.stats().preemptions_total == 0


def test_what_was_cached_of_a_squeezed_sequence_is_read_by_nobody_later() -> None:
    """Its rows move in place, so the beginning of its text is not there any more for one who begins alike."""
    scheduler, runner = crowded(prefix_caching=True)
    for name in "abc":
        scheduler.add(request(name, 40, 40, cache_salt=name))
    outcome = until_a_contest(scheduler, runner)
    squeezed = runner.plans[-1].contest
    assert squeezed is not None
    later = scheduler.add(request("d", 40, 4, cache_salt="a"))[0]
    run(scheduler, runner, outcome)
    assert later.num_reused == 0
