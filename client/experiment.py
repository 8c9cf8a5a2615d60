"""One load on every target: the place where prompts, arrivals, connections and records come together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Never

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from client.calls import first_calls
from client.connection import Clock
from client.errors import BenchError, Interrupted
from client.material import Material
from client.options import Arrival, Options
from client.pool import Address, ConnectionPool
from client.prompts import Session
from client.record import RequestRecord
from client.request import Call, stream_request
from client.runner import Limits, Outcome, clock_from, run_load
from client.scrape import Scraper, Series
from client.summary import Summary, Wanted, summarise
from client.targets import Target
from client.wire import BodyTemplate


@dataclass(frozen=True, slots=True)
class Level:
    """One load. `at` is what a sweep varies: requests at a time, or per second; `number` counts from 0."""

    arrival: Arrival
    concurrency: int | None
    at: float = 0.0
    number: int = 0

    def describe(self) -> str:
        """In a few words; never empty."""
        limit = f"{self.concurrency} at a time" if self.concurrency else ""
        return ", ".join(part for part in (self.arrival.describe(), limit) if part)


@dataclass(frozen=True, slots=True)
class Run:
    """One level on one target, and what came of it. `server` holds what it said of itself meanwhile."""

    target: Target
    level: Level
    date: datetime
    summary: Summary
    server: Mapping[str, Series]


@dataclass(slots=True)
class _Side:
    """One target during a level."""

    target: Target
    calls: list[Call]
    scraper: Scraper
    outcome: Outcome = field(default_factory=Outcome)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Runs levels against `targets`, whose models are known."""

    options: Options
    pool: ConnectionPool
    targets: Sequence[Target]
    tokenizer: Tokenizer | None

    async def run(self, level: Level) -> list[Run]:
        """The same requests to every target, in turns, so that a change of the machine meets all alike.

        Raises BenchError before the first request.
        """
        date = datetime.now().astimezone()
        sessions = self._sessions(level)
        warm_up, sessions = self._split_warm_up(sessions, level)
        dues = level.arrival.due_times(sessions, self._dice(level, 1))
        planned = sum(len(session.prompts) for session in sessions)
        sides = [_Side(target, self._calls(target, sessions), self._scraper(target)) for target in self.targets]
        await self._warm_up(warm_up)
        with self._progress(planned * len(sides), level.describe()) as bar:
            for number, (first, end) in enumerate(self._parts(len(sessions))):
                for side in sides if number % 2 == 0 else reversed(sides):
                    if not any(one.outcome.interrupted for one in sides):
                        part = None if dues is None else [due - dues[first] for due in dues[first:end]]
                        await self._play(side, side.calls[first:end], part, level, bar)
        return [self._result(side, level, date, planned) for side in sides]

    async def _play(
        self, side: _Side, calls: Sequence[Call], dues: Sequence[float] | None, level: Level, bar: tqdm[Never]
    ) -> None:
        server, limit = self.options.server, self.options.load.time_limit
        address = Address.of(side.target.url(server.path))
        failed = 0

        async def send(call: Call, due: float | None, clock: Clock) -> RequestRecord:
            timeout_s = server.request_timeout_sec
            return await stream_request(self.pool, address, call, due=due, clock=clock, timeout_s=timeout_s)

        def advance(record: RequestRecord) -> None:
            nonlocal failed
            if record.failure:
                failed += 1
                bar.set_postfix(failed=failed, refresh=False)
            bar.update()

        await self.pool.warm(address, min(len(calls), level.concurrency or 0))
        limits = Limits(level.concurrency, None if limit is None else limit / self._rounds)
        async with side.scraper.scraping(clock_from(side.outcome.duration)):
            await run_load(calls, send, side.outcome, due_times=dues, limits=limits, on_done=advance)

    def _sessions(self, level: Level) -> list[Session]:
        requests, as_ids = self.options.requests, self.options.server.backend == "openai"
        material = Material(self._dice(level, 0), as_ids, self.tokenizer)
        return self.options.dataset.sessions(requests.num_warmups + requests.num_prompts, material)

    def _split_warm_up(self, sessions: list[Session], level: Level) -> tuple[list[Session], list[Session]]:
        """The sessions of the warm-up and of the run, all different: a prefix cache must not know them."""
        number = self.options.requests.num_warmups
        if len(sessions) <= number:
            raise BenchError(f"there are only {len(sessions)} requests: lower --num-warmups")
        return ([] if level.number else sessions[:number]), sessions[number:]

    async def _warm_up(self, sessions: Sequence[Session]) -> None:
        if not sessions:
            return
        limit = self.options.load.max_concurrency
        with self._progress(len(sessions) * len(self.targets), "warming up") as bar:
            for target in self.targets:
                side = _Side(target, self._calls(target, sessions), Scraper(self.pool, target.metrics_url, 0))
                await self._play(side, side.calls, None, Level(self.options.arrival, limit), bar)
                if side.outcome.interrupted:
                    raise Interrupted

    def _calls(self, target: Target, sessions: Iterable[Session]) -> list[Call]:
        requests, server = self.options.requests, self.options.server
        extra = requests.extra_body | target.extra_body
        template = BodyTemplate(
            server.backend, target.model, requests.sampling, requests.logprobs, requests.ignore_eos, extra
        )
        return first_calls(sessions, template, requests.request_id_prefix)

    def _scraper(self, target: Target) -> Scraper:
        return Scraper(self.pool, target.metrics_url, self.options.report.metrics_interval)

    def _parts(self, count: int) -> list[tuple[int, int]]:
        """The turns of a target: from which session to which."""
        bounds = np.linspace(0, count, min(self._rounds, count) + 1).astype(int)
        return [(int(first), int(end)) for first, end in pairwise(bounds)]

    @property
    def _rounds(self) -> int:
        return self.options.load.rounds if len(self.targets) > 1 else 1

    def _dice(self, level: Level, what: int) -> np.random.Generator:
        return np.random.default_rng([self.options.requests.seed, what, level.number])

    def _progress(self, total: int, title: str) -> tqdm[Never]:
        # tqdm takes None for "off unless a terminal".
        bar: tqdm[Never] = tqdm(total=total, desc=title, unit="req", disable=self.options.report.disable_tqdm or None)
        return bar

    def _result(self, side: _Side, level: Level, date: datetime, planned: int) -> Run:
        report, tokenizer = self.options.report, self.tokenizer
        wanted = Wanted(
            report.percentile_metrics,
            report.metric_percentiles,
            dict(report.goodput),
            None if tokenizer is None else lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids),
        )
        summary = summarise(side.outcome, planned, wanted)
        return Run(side.target, level, date, summary, side.scraper.series())
