"""The loop that joins scheduler and runner, and the door through which requests come and go."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Protocol

from scheduler.errors import EngineDead, EngineDraining, RequestRejected
from scheduler.plan import StepPlan, StepResult
from scheduler.progress import Progress
from scheduler.request import GenerationRequest
from scheduler.scheduler import Scheduler
from scheduler.sequence import Sequence
from scheduler.stats import EngineObserver, EngineStats, NullObserver, StepStats
from scheduler.stream import TokenStream

logger = logging.getLogger(__name__)

_FAILURES_TO_DIE = 3  # steps that raise in a row; one bad batch must not end the engine, a broken runner must


class Runner(Protocol):
    """Executes plans, one at a time, on a thread of its own."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute the step. Raising fails the sequences in it; the next plan releases their slots."""


def compute_thread() -> ThreadPoolExecutor:
    """One thread to compute in.

    Load the model in it, too: OpenMP keeps a team of threads for every thread that ever computed, and once these
    outnumber the cores its barriers sleep instead of spinning, which made steps a quarter slower.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")


class AsyncEngine:
    """Owns the scheduler, the executor thread and all streams.

    Every method is called on the event loop's thread and all scheduler state changes there; the executor sees frozen
    plans and returns frozen results. So there are no locks. `stall_seconds`: a step that takes longer counts as stuck.
    `stop_seconds`: how long the end waits for one. `executor`: one thread, where steps run; the engine shuts it down.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        observer: EngineObserver | None = None,
        *,
        executor: ThreadPoolExecutor | None = None,
        stall_seconds: float = 120.0,
        stop_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._observer = observer or NullObserver()
        self._stop_seconds = stop_seconds
        self._clock = clock
        self._progress = Progress(stall_seconds, clock)
        self._executor = executor or compute_thread()
        self._streams: dict[str, tuple[TokenStream, list[Sequence]]] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._draining = False
        self._death: str | None = None
        self._died = asyncio.Event()

    @property
    def max_model_len(self) -> int:
        """The most tokens, prompt and continuation together, that a sequence can have."""
        return self._scheduler.config.max_model_len

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a sequence."""
        return self._scheduler.config.eos_token_ids

    async def start(self) -> None:
        """Begin to run what is submitted."""
        self._idle.set()
        self._task = asyncio.create_task(self._run(), name="engine")
        self._task.add_done_callback(lambda _: self._die("the engine's loop has ended"))

    async def stop(self) -> bool:
        """End every stream with an error event and the loop with it; False if a step under way does not end in time."""
        self._die("the server was stopped")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        behind_the_step = self._executor.submit(lambda: None)
        done, _ = await asyncio.wait([asyncio.wrap_future(behind_the_step)], timeout=self._stop_seconds)
        self._executor.shutdown(wait=bool(done), cancel_futures=True)
        return bool(done)

    def submit(self, request: GenerationRequest) -> TokenStream:
        """Queue `request`; use the stream as a context manager. Raises EngineError if the request is refused."""
        if self._death is not None:
            raise EngineDead(self._death)
        if self._draining:
            raise EngineDraining("the server is shutting down and takes no new requests")
        if request.request_id in self._streams:
            raise RequestRejected(f"request id {request.request_id!r} is in use", param="request_id")
        was_idle = not self._scheduler.has_work
        sequences = self._scheduler.add(request)
        if was_idle:
            self._progress.work_came()
        stream = TokenStream(request.request_id, request.n, partial(self._end, request.request_id))
        self._streams[request.request_id] = (stream, sequences)
        self._idle.clear()
        self._wake.set()
        return stream

    def unhealthy_reason(self) -> str | None:
        """Why no request would make progress now; None if all is well."""
        return self._death or self._progress.obstacle(has_work=self._scheduler.has_work)

    async def death(self) -> str:
        """Wait until the engine has ended, for good; returns why."""
        await self._died.wait()
        assert self._death is not None
        return self._death

    def begin_drain(self) -> None:
        """Take nothing new from now on; what is queued or running goes on."""
        self._draining = True

    async def drained(self, seconds: float) -> bool:
        """Wait until nothing is left, at most `seconds`; then end the rest with error events and return False."""
        if await self._idle_within(seconds):
            return True
        for _, sequences in list(self._streams.values()):
            for sequence in sequences:
                self._scheduler.end(sequence, "error", "the server shut down before the request was complete")
        self._deliver()
        if not await self._idle_within(self._stop_seconds):
            self._die("the server shut down in the middle of a step that does not end")
        return False

    def stats(self) -> EngineStats:
        """Gauges and totals now."""
        return self._scheduler.stats()

    async def _idle_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
                return True
        return False

    async def _run(self) -> None:
        try:
            while True:
                began = self._clock()
                plan = self._scheduler.plan()
                if plan is not None:
                    await self._step(plan, began)
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except Exception:
            logger.exception("the engine loop failed")
            self._die("the engine failed and cannot go on; see the server's log")

    async def _step(self, plan: StepPlan, began: float) -> None:
        planned = self._clock()
        result = await self._execute(plan)
        executed = self._clock()
        if result is not None:
            self._scheduler.apply(result)
        self._deliver()
        if result is not None:
            total = self._clock() - began
            self._observer.step_done(_step_stats(plan, result, planned - began, executed - planned, total))

    async def _execute(self, plan: StepPlan) -> StepResult | None:
        """The result, or None if the step failed, which ends the requests in it. Raises what fails too often."""
        self._progress.step_began()
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._executor, self._compute, plan)
        except Exception:
            failed = self._scheduler.fail("the engine failed in a step of this request; see the server's log")
            names = sorted({self._name_for_logs(request_id) for request_id in failed})
            logger.exception("a step failed, which ends request(s) %s", ", ".join(names))
            self._failures += 1
            if self._failures >= _FAILURES_TO_DIE:
                raise
            return None
        finally:
            self._progress.step_ended()
        self._failures = 0
        return result

    def _name_for_logs(self, request_id: str) -> str:
        """What the sender of an open request calls it, else its own id."""
        entry = self._streams.get(request_id)
        return (entry[1][0].request.sender_id if entry else None) or request_id

    def _compute(self, plan: StepPlan) -> StepResult:
        self._progress.computing()
        return self._runner.execute(plan)

    def _deliver(self) -> None:
        for sequence, event in self._scheduler.take_events():
            entry = self._streams.get(sequence.request.request_id)
            if entry is None:
                continue
            entry[0].push(event)
            if entry[0].is_over:
                del self._streams[sequence.request.request_id]
        if not self._scheduler.has_work:
            self._idle.set()

    def _end(self, request_id: str, index: int | None) -> None:
        """The reader is done with choice `index`, or with the whole request."""
        entry = self._streams.get(request_id)
        if entry is None:
            return
        for sequence in entry[1]:
            if index is None:
                self._scheduler.end(sequence, "abort")
            elif sequence.index == index:
                self._scheduler.end(sequence, "stop")
        self._deliver()

    def _die(self, reason: str) -> None:
        if self._death is None:
            self._death = reason
            self._died.set()
            try:
                self._scheduler.end_all(reason)
            except Exception:
                logger.exception("the scheduler could not end its sequences")
            self._deliver()
            for stream, _ in self._streams.values():
                stream.fail(reason)
            self._streams.clear()


def _step_stats(plan: StepPlan, result: StepResult, planning: float, executing: float, total: float) -> StepStats:
    decodes = sum(work.sample is not None and work.sample.step > 0 and work.tokens.size == 1 for work in plan.work)
    parts = {
        **result.seconds,
        "handover": max(0.0, executing - sum(result.seconds.values())),
        "scheduling": planning + max(0.0, total - planning - executing),
    }
    return StepStats(plan.num_tokens, plan.num_tokens - decodes, len(plan.work), total, parts)
