"""Runs requests through scheduler and runner in this thread, without a server: for measuring and comparing."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.request import GenerationRequest
from server.launch import Assembly


def generate(assembly: Assembly, requests: Iterable[GenerationRequest], *, check: bool = False) -> dict[str, list[int]]:
    """Tokens of choice 0 of every request. `check`: assert the scheduler's integrity after each step."""
    scheduler, runner = assembly.scheduler, assembly.runner
    for request in requests:
        scheduler.add(request)
    tokens: dict[str, list[int]] = {}
    while (plan := scheduler.plan()) is not None:
        scheduler.apply(runner.execute(plan))
        if check:
            scheduler.check_integrity()
        for sequence, event in scheduler.take_events():
            if event.finish is not None and event.finish.error is not None:
                raise RuntimeError(f"{sequence.request.request_id}: {event.finish.error}")
            if event.index == 0:
                tokens.setdefault(sequence.request.request_id, []).extend(event.tokens)
    return tokens
