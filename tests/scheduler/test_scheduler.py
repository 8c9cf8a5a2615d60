"""Scheduling decisions, seen through plans and events."""

from __future__ import annotations

import time

import numpy as np
import pytest

from scheduler.budget import EvictionRules, SequenceBudget
from scheduler.errors import QueueFull, RequestRejected
from scheduler.plan import SequenceWork, StepResult, WorkResult
from scheduler.request import SamplingParams
from scheduler.scheduler import Scheduler
from tests.scheduler.fakes import EOS, LANES, PAGE_SIZE, FakeRunner, Outcome, config, request, run, step


def test_a_prompt_is_read_in_chunks_and_then_decoded() -> None:
    scheduler, runner = Scheduler(config()), FakeRunner()
    scheduler.add(request("a", 70, 3))
    outcome = run(scheduler, runner)
    assert [plan.num_tokens for plan in runner.plans] == [32, 32, 6, 1, 1]
    assert [plan.work[0].sample is not None for plan in runner.plans] == [False, False, True, True, True]
    assert outcome.tokens["a", 0] == [7, 7, 7]
    assert outcome.reason("a") == "length"


def test_decodes_come_first_and_prompts_share_what_is_left() -> None:
    scheduler, runner, outcome = Scheduler(config()), FakeRunner(), Outcome()
    scheduler.add(request("running", 4, 50))
    step(scheduler, runner, outcome)
    scheduler.add(request("long", 100, 1))
    plan = step(scheduler, runner, outcome)
    assert plan is not None
    assert [work.tokens.size for work in plan.work] == [1, 31]


def test_a_short_prompt_passes_a_long_one() -> None:
    scheduler, runner, outcome = Scheduler(config()), FakeRunner(), Outcome()
    scheduler.add(request("long", 150, 1))
    step(scheduler, runner, outcome)
    scheduler.add(request("short", 5, 1))
    plan = step(scheduler, runner, outcome)
    assert plan is not None
    assert sorted(work.tokens.size for work in plan.work) == [5, 27]
    assert outcome.reason("short") == "length"


def test_short_prompts_leave_half_of_each_step_to_the_long_one() -> None:
    scheduler, runner, outcome = Scheduler(config(max_num_seqs=20)), FakeRunner(), Outcome()
    scheduler.add(request("long", 150, 1))
    for number in range(40):
        scheduler.add(request(f"short-{number}", 8, 1))
    steps = 0
    while ("long", 0) not in outcome.finished:
        step(scheduler, runner, outcome)
        steps += 1
    assert steps <= -(-150 // 16)


@pytest.mark.parametrize(
    ("params", "drawn", "reason", "count"),
    [
        (SamplingParams(max_tokens=9), EOS, "stop", 1),
        (SamplingParams(max_tokens=3, ignore_eos=True), EOS, "length", 3),
        (SamplingParams(max_tokens=9, min_tokens=4), EOS, "stop", 4),
        (SamplingParams(max_tokens=9, stop_token_ids=(7,)), 7, "stop", 1),
        (SamplingParams(max_tokens=9, stop_token_ids=(7,), ignore_eos=True), 7, "stop", 1),
        (SamplingParams(max_tokens=1), 7, "length", 1),
        (SamplingParams(max_tokens=0), 7, "length", 0),
    ],
)
def test_when_a_sequence_ends(params: SamplingParams, drawn: int, reason: str, count: int) -> None:
    scheduler = Scheduler(config())
    scheduler.add(request("a", 5, 0, params=params))
    outcome = run(scheduler, FakeRunner(next_token=lambda work, row: drawn))
    assert outcome.reason("a") == reason
    assert len(outcome.tokens["a", 0]) == count
    finish = outcome.finished["a", 0].finish
    assert finish is not None
    assert finish.stop_token == (7 if reason == "stop" and drawn == 7 else None)


def test_end_tokens_are_banned_below_min_tokens() -> None:
    scheduler = Scheduler(config())
    params = SamplingParams(max_tokens=5, min_tokens=2, stop_token_ids=(3,))
    scheduler.add(request("a", 5, 0, params=params))
    banned: list[tuple[int, ...]] = []

    def draw(work: SequenceWork, _: int) -> int:
        assert work.sample is not None
        banned.append(work.sample.banned)
        return 7

    run(scheduler, FakeRunner(next_token=draw))
    assert banned == [(3, EOS), (3, EOS), (), (), ()]


def test_prompt_logprobs_cover_the_prompt_across_chunks() -> None:
    scheduler = Scheduler(config())
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    sequences = scheduler.add(request("a", 70, 0, params=params, n=2))
    run(scheduler, FakeRunner())
    known = sequences[0].prompt_logprobs
    assert known[0] is None
    assert [entry.token for entry in known[1:] if entry] == list(range(2, 71))
    assert sequences[1].prompt_logprobs == []


def test_the_context_limit_ends_a_sequence() -> None:
    scheduler = Scheduler(config(max_model_len=20))
    scheduler.add(request("a", 15, 1000))
    outcome = run(scheduler, FakeRunner())
    assert len(outcome.tokens["a", 0]) == 5
    assert outcome.reason("a") == "length"


def test_too_long_a_prompt_is_refused_with_both_numbers() -> None:
    scheduler = Scheduler(config(max_model_len=20))
    with pytest.raises(RequestRejected, match=r"21 tokens.*context length is 20") as caught:
        scheduler.add(request("a", 20, 5))
    assert caught.value.code == "context_length_exceeded"
    assert not scheduler.has_work


def test_a_prompt_beyond_the_memory_is_refused_at_the_door() -> None:
    scheduler = Scheduler(config(num_pages=LANES * 5 + 1))
    with pytest.raises(RequestRejected, match="KV memory holds 20"):
        scheduler.add(request("a", 20, 5))
    scheduler.add(request("b", 19, 500))
    outcome = run(scheduler, FakeRunner())
    assert len(outcome.tokens["b", 0]) == 1


@pytest.mark.parametrize("policy", ["paper", "lossy"])
@pytest.mark.parametrize("evict", ["pressure", "always"])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_prompt_that_never_fits_whole_is_compressed_while_it_is_read(
    policy: str, evict: str, prefix_caching: bool
) -> None:
    changes = {"default_policy": policy, "default_budget": 8, "evict": evict, "prefix_caching": prefix_caching}
    scheduler, runner = Scheduler(config(num_pages=LANES * 5 + 1, **changes)), FakeRunner()
    for name in ("a", "b"):
        scheduler.add(request(name, 150, 20))
    outcome = run(scheduler, runner)
    assert [len(outcome.tokens[name, 0]) for name in ("a", "b")] == [20, 20]
    assert scheduler.stats().preemptions_total == 0


def test_a_sequence_that_finds_its_rows_but_no_room_does_not_keep_others_from_going_on() -> None:
    """Preempted, it would find the rows that it gave up, and be in the way again, in the same step without end."""
    scheduler, runner = Scheduler(config(num_pages=LANES * 12 + 1, prefix_caching=True)), FakeRunner()
    for number in range(4):
        scheduler.add(request(str(number), 40, 6))
    outcome = run(scheduler, runner, limit=1000)
    assert all(len(outcome.tokens[str(number), 0]) == 6 for number in range(4))


def test_the_ceiling_is_met_exactly_at_every_step() -> None:
    """Algorithm 1: a compression follows each step in which a lane holds more rows than the budget, and only these."""
    budget, drop = 8, 4
    scheduler, outcome = Scheduler(config(default_policy="paper", default_budget=budget, page_size=1)), Outcome()
    sequence = scheduler.add(request("a", 30, 12))[0]
    rows = []
    while scheduler.has_work:
        plan = scheduler.plan()
        assert plan is not None
        held = int(sequence.table.kept.max())
        assert held <= budget + 1
        assert bool(plan.evictions) == (held == budget + 1)
        kept = tuple(np.full(LANES, eviction.keep_rows // LANES, dtype=np.int32) for eviction in plan.evictions)
        assert all(count[0] == budget + 1 - drop for count in kept)
        scheduler.apply(StepResult(tuple(WorkResult(None if work.sample is None else 7) for work in plan.work), kept))
        rows.append(held)
    assert rows[0] == budget + 1
    outcome.take(scheduler.take_events())
    assert len(outcome.tokens["a", 0]) == 12


def test_newest_is_preempted_and_finishes_later_with_all_its_tokens() -> None:
    scheduler, runner = Scheduler(config(num_pages=LANES * 16 + 1)), FakeRunner()
    for name in "abc":
        scheduler.add(request(name, 12, 40))
    outcome = run(scheduler, runner)
    assert scheduler.stats().preemptions_total > 0
    assert all(len(outcome.tokens[name, 0]) == 40 for name in "abc")
    usage = {name: outcome.finished[name, 0].finish for name in "abc"}
    assert usage["a"] is not None
    assert usage["a"].usage.preemptions == 0, "the oldest is never the victim"


def test_memory_short_of_pages_compresses_before_it_preempts() -> None:
    scheduler, runner = (
        Scheduler(config(num_pages=LANES * 26 + 1, default_policy="lossy", default_budget=8)),
        FakeRunner(),
    )
    for name in "abcdef":
        scheduler.add(request(name, 12, 60))
    outcome = run(scheduler, runner)
    stats = scheduler.stats()
    assert stats.compressions_total["pressure"] > 0
    assert stats.compressions_total["budget"] == 0
    assert stats.preemptions_total == 0
    assert all(len(outcome.tokens[name, 0]) == 60 for name in "abcdef")


def test_a_sequence_that_outgrew_the_pool_is_compressed_while_it_is_read_again() -> None:
    scheduler, runner = (
        Scheduler(config(num_pages=LANES * 12 + 1, default_policy="lossy", default_budget=8)),
        FakeRunner(),
    )
    scheduler.add(request("whole", 4, 43, kv_policy="full"))
    scheduler.add(request("small", 30, 150))
    outcome = run(scheduler, runner, limit=1000)
    assert len(outcome.tokens["small", 0]) == 150
    assert 0 < scheduler.stats().preemptions_total < 5


def test_room_in_its_own_pages_counts_as_room() -> None:
    """Compressing from 48 to 37 rows frees no page of 16, but makes room for eleven tokens."""
    lossy = {"lossy": EvictionRules(37)}
    changes = {"page_size": 16, "policies": lossy, "default_policy": "lossy", "default_budget": 37}
    scheduler, runner = Scheduler(config(num_pages=16, **changes)), FakeRunner(page_size=16, uniform=True)
    scheduler.add(request("a", 20, 100))
    outcome = run(scheduler, runner, limit=1000)
    assert len(outcome.tokens["a", 0]) == 100
    assert scheduler.stats().preemptions_total == 0


def test_unequal_lanes_do_not_slow_the_reading_of_a_prompt() -> None:
    changes = {"default_policy": "paper", "default_budget": 40, "max_num_batched_tokens": 64, "max_model_len": 2000}
    scheduler, runner = Scheduler(config(num_pages=2000, **changes)), FakeRunner()
    scheduler.add(request("a", 1000, 1))
    run(scheduler, runner)
    assert len(runner.plans) <= 1000 // 15


def test_an_answer_that_was_complete_stays_complete_when_the_step_fails() -> None:
    scheduler, runner, outcome = Scheduler(config()), FakeRunner(), Outcome()
    sequence = scheduler.add(request("a", 8, 50))[0]
    step(scheduler, runner, outcome)
    scheduler.plan()
    scheduler.end(sequence, "stop")
    scheduler.fail("boom")
    outcome.take(scheduler.take_events())
    assert outcome.reason("a") == "stop"


def test_more_choices_than_the_queue_holds_are_refused_for_good() -> None:
    with pytest.raises(RequestRejected, match="the queue, which holds 3"):
        Scheduler(config(max_num_queued=3)).add(request("a", 4, 1, n=4))


def test_with_ample_memory_pressure_evicts_nothing() -> None:
    scheduler = Scheduler(config(num_pages=5000, default_policy="lossy"))
    for name in "abcd":
        scheduler.add(request(name, 50, 60))
    run(scheduler, FakeRunner())
    assert scheduler.stats().rows_evicted_total == 0


def test_always_holds_every_sequence_near_its_budget() -> None:
    scheduler, outcome = Scheduler(config(default_policy="lossy", default_budget=8, evict="always")), Outcome()
    runner = FakeRunner()
    sequence = scheduler.add(request("a", 40, 60))[0]
    while step(scheduler, runner, outcome) is not None:
        if sequence.is_decoding and sequence.slot is not None:
            assert sequence.table.total_rows <= (8 + 2 + 1) * LANES
    usage = outcome.finished["a", 0].finish
    assert usage is not None
    assert usage.usage.rows_evicted + usage.usage.rows_kept == 40 + 60 - 1


def test_more_evicting_sequences_run_at_once_than_full_ones() -> None:
    peaks = {}
    for policy in ("full", "lossy"):
        changes = {"num_pages": LANES * 30 + 1, "max_num_seqs": 30, "max_num_batched_tokens": 64}
        scheduler = Scheduler(config(default_policy=policy, default_budget=8, evict="always", **changes))
        runner, outcome, peak = FakeRunner(), Outcome(), 0
        for number in range(16):
            scheduler.add(request(str(number), 30, 20))
        while step(scheduler, runner, outcome) is not None:
            peak = max(peak, scheduler.stats().num_running)
        peaks[policy] = peak
        assert len(outcome.finished) == 16
    assert peaks["lossy"] >= 2 * peaks["full"]


def test_a_request_for_the_full_cache_is_never_compressed() -> None:
    scheduler = Scheduler(config(default_policy="lossy", default_budget=8, evict="always"))
    scheduler.add(request("whole", 40, 20, kv_policy="full"))
    scheduler.add(request("small", 40, 20, kv_budget=10))
    outcome = run(scheduler, FakeRunner())
    whole, small = (outcome.finished[name, 0].finish for name in ("whole", "small"))
    assert whole is not None
    assert small is not None
    assert whole.usage.rows_evicted == 0
    assert small.usage.rows_kept <= 13


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(RequestRejected, match="full, lossy, paper"):
        Scheduler(config()).add(request("a", 4, 4, kv_policy="best"))


def test_a_blocked_head_is_passed_only_so_often() -> None:
    """Small requests use the room that the head cannot, and yet an endless supply of them does not starve it."""
    scheduler, runner, outcome = Scheduler(config(num_pages=LANES * 30 + 1)), FakeRunner(), Outcome()
    scheduler.add(request("running", 60, 100))
    step(scheduler, runner, outcome)
    scheduler.add(request("head", 80, 1))
    for number in range(200):
        scheduler.add(request(f"small-{number}", 4, 2))
    while ("head", 0) not in outcome.finished:
        assert step(scheduler, runner, outcome) is not None
    done = sum(name.startswith("small") for name, _ in outcome.finished)
    assert 0 < done <= 16 + 6


def test_priority_runs_lower_numbers_first_and_fcfs_ignores_them() -> None:
    for order, first in (("priority", "urgent"), ("fcfs", "early")):
        scheduler, outcome = Scheduler(config(order=order, max_num_seqs=1)), Outcome()
        scheduler.add(request("early", 8, 1, priority=5))
        scheduler.add(request("urgent", 8, 1, priority=-5))
        step(scheduler, FakeRunner(), outcome)
        assert list(outcome.finished) == [(first, 0)]


def test_aborts_return_pages_in_every_state() -> None:
    scheduler, runner, outcome = Scheduler(config()), FakeRunner(), Outcome()
    running = scheduler.add(request("running", 8, 50))[0]
    in_flight = scheduler.add(request("in-flight", 8, 50))[0]
    waiting = scheduler.add(request("waiting", 8, 50))[0]
    scheduler.end(waiting, "abort")
    step(scheduler, runner, outcome)
    scheduler.end(running, "abort")
    plan = scheduler.plan()
    assert plan is not None
    scheduler.end(in_flight, "abort")
    scheduler.end(in_flight, "abort")
    assert in_flight.table.total_pages > 0, "its pages are in use until the step is over"
    scheduler.apply(runner.execute(plan))
    outcome.take(scheduler.take_events())
    assert {outcome.reason(name) for name in ("running", "in-flight", "waiting")} == {"abort"}
    assert scheduler.stats().pages_free == scheduler.stats().pages_total


def test_a_failed_step_ends_only_its_own_sequences() -> None:
    scheduler, runner, outcome = Scheduler(config(max_num_seqs=1)), FakeRunner(), Outcome()
    scheduler.add(request("unlucky", 8, 5))
    scheduler.add(request("spared", 8, 5))
    assert scheduler.plan() is not None
    assert scheduler.fail("boom") == {"unlucky"}
    outcome = run(scheduler, runner, outcome)
    assert outcome.reason("unlucky") == "error"
    assert outcome.reason("spared") == "length"


def test_end_all_ends_everything_whatever_the_state() -> None:
    scheduler, outcome = Scheduler(config(max_num_seqs=1)), Outcome()
    for name in "abc":
        scheduler.add(request(name, 8, 5))
    scheduler.plan()
    scheduler.end_all("over")
    outcome.take(scheduler.take_events())
    assert {outcome.reason(name) for name in "abc"} == {"error"}
    assert not scheduler.has_work
    scheduler.check_integrity()


def test_the_queue_has_a_limit() -> None:
    scheduler = Scheduler(config(max_num_queued=3))
    scheduler.add(request("a", 4, 1, n=3))
    with pytest.raises(QueueFull, match="3 requests wait"):
        scheduler.add(request("b", 4, 1))
    assert scheduler.stats().num_waiting == 3


def test_planning_stays_quick_with_a_thousand_waiting() -> None:
    """A bound on work, not a benchmark: planning looks at a few sequences, however many wait."""
    scheduler, runner, outcome = Scheduler(config()), FakeRunner(), Outcome()
    for number in range(1024):
        scheduler.add(request(str(number), 8, 4))
    spent = []
    for _ in range(20):
        began = time.perf_counter()
        plan = scheduler.plan()
        spent.append(time.perf_counter() - began)
        assert plan is not None
        scheduler.apply(runner.execute(plan))
    outcome.take(scheduler.take_events())
    assert min(spent) < 0.05


def test_impossible_settings_say_what_to_change() -> None:
    with pytest.raises(ValueError, match="must exceed max_num_seqs"):
        config(max_num_batched_tokens=6, max_num_seqs=6)
    with pytest.raises(ValueError, match="known: full"):
        config(default_policy="nope")


def test_page_size_and_lanes_are_what_the_fakes_assume() -> None:
    assert (config().num_lanes, config().page_size) == (LANES, PAGE_SIZE)


@pytest.mark.parametrize("size", [1, 0.001, 11, 22, 23, 40, 0.5])
def test_no_compression_goes_below_the_protected_rows(size: float) -> None:
    """Ten recent rows under the paper's rules, whatever the budget."""
    budget = SequenceBudget(EvictionRules(min_rows=22, drop=0.5, ceiling=True, streaming=True), size)
    assert all(10 < budget.low(seen) <= budget.high(seen) for seen in range(1, 200))
