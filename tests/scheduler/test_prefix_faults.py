"""Known faults of prefix caches. The runner checks that rows read through a table are those of the text."""

from __future__ import annotations

import pytest

from scheduler.plan import SequenceWork
from scheduler.scheduler import Scheduler
from tests.scheduler.fakes import LANES, PAGE_SIZE, FakeRunner, Outcome, config, request, run, said, step

Tokens = list[int]
NEW = 6


def drawn(_: SequenceWork, row: int) -> int:
    """A token that all of the text before it decides, so that a wrong row shows."""
    return row % 90


def runner() -> FakeRunner:
    """One that draws so."""
    return FakeRunner(next_token=drawn)


def expected(length: int) -> Tokens:
    """What follows a prompt of `length`, worked out without any pages."""
    text = list(range(1, length + 1))
    for _ in range(NEW):
        text.append(said(text) % 90)
    return text[length:]


def cached(outcome: Outcome, name: str) -> int:
    """Tokens of the prompt that were found."""
    finish = outcome.finished[name, 0].finish
    assert finish is not None
    return finish.usage.cached_tokens


@pytest.mark.parametrize("pages", [1, 2, 3, 4])
def test_a_prompt_that_is_known_to_its_end_still_computes_its_last_token(pages: int) -> None:
    scheduler, fake = Scheduler(config(prefix_caching=True)), runner()
    length = pages * PAGE_SIZE
    scheduler.add(request("first", length, NEW))
    first = run(scheduler, fake)
    for name in "abcd":
        scheduler.add(request(name, length, NEW))
    later = run(scheduler, fake)
    assert first.tokens["first", 0] == expected(length)
    for name in "abcd":
        assert later.tokens[name, 0] == expected(length)
        assert cached(later, name) == length - PAGE_SIZE


def test_twins_that_arrive_together_leave_no_entry_without_pages() -> None:
    scheduler, fake, outcome = Scheduler(config(prefix_caching=True)), runner(), Outcome()
    length = 3 * PAGE_SIZE
    twins = [scheduler.add(request(f"twin {number}", length, NEW))[0] for number in range(8)]
    for _ in range(2):
        step(scheduler, fake, outcome)
    for twin in twins[::2]:
        scheduler.end(twin, "abort")
    run(scheduler, fake)
    scheduler.add(request("late", length, NEW))
    late = run(scheduler, fake)
    assert late.tokens["late", 0] == expected(length)
    stats = scheduler.stats()
    assert stats.pages_free == stats.pages_total


def test_pages_that_others_took_over_are_not_found_under_their_old_name() -> None:
    scheduler, fake = Scheduler(config(num_pages=LANES * 12 + 1, prefix_caching=True)), runner()
    scheduler.add(request("first", 3 * PAGE_SIZE, NEW))
    run(scheduler, fake)
    scheduler.add(request("other", 10 * PAGE_SIZE, NEW, cache_salt="x"))
    run(scheduler, fake)
    scheduler.add(request("again", 3 * PAGE_SIZE, NEW))
    again = run(scheduler, fake)
    assert again.tokens["again", 0] == expected(3 * PAGE_SIZE)
    assert cached(again, "again") == 0


@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
def test_only_whole_blocks_are_found(blocks: int) -> None:
    """Where rows of a block are needed as they were before they went into pages."""
    block = 2 * PAGE_SIZE
    scheduler, fake = Scheduler(config(prefix_caching=True, block=block)), runner()
    length = blocks * block + PAGE_SIZE + 1
    scheduler.add(request("first", length, NEW))
    run(scheduler, fake)
    scheduler.add(request("second", length, NEW))
    scheduler.add(request("longer", length + 3 * block, NEW))
    later = run(scheduler, fake)
    scheduler.add(request("longest", length + 5 * block, NEW))
    last = run(scheduler, fake)
    assert cached(later, "second") == blocks * block
    assert cached(later, "longer") >= blocks * block
    assert cached(last, "longest") >= (blocks + 3) * block
    for outcome, name, extra in ((later, "second", 0), (later, "longer", 3), (last, "longest", 5)):
        assert outcome.tokens[name, 0] == expected(length + extra * block)


def test_what_is_left_of_a_block_does_not_keep_it_from_being_known_again() -> None:
    block = 2 * PAGE_SIZE
    scheduler, fake = Scheduler(config(prefix_caching=True, block=block)), runner()
    length = 3 * block + 1
    scheduler.add(request("first", length, 1))
    run(scheduler, fake)
    cache, allocator = scheduler.memory.prefixes.cache, scheduler.memory.allocator
    cache.make_room(allocator.num_free + 1)  # the last column alone
    for name, found in (("second", 2 * block), ("third", 3 * block)):
        scheduler.add(request(name, length, 1))
        assert cached(run(scheduler, fake), name) == found
