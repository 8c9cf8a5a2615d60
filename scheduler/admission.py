"""Who may run: what could never fit is refused at the door, the rest enters when its pages can be promised."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from scheduler.budget import SequenceBudget
from scheduler.config import SchedulerConfig
from scheduler.errors import RequestRejected
from scheduler.forecast import Forecast, Pages
from scheduler.memory import KVMemory
from scheduler.queue import WaitingQueue
from scheduler.request import GenerationRequest
from scheduler.sequence import Sequence

_MAX_SKIPS = 16  # newcomers that may pass a waiting sequence for which there is no room yet
LOOKAHEAD = 32  # waiting sequences looked at in one step, which bounds the time that planning takes


def checked_budget(request: GenerationRequest, config: SchedulerConfig, memory: KVMemory) -> SequenceBudget | None:
    """The row budget of `request`. Raises RequestRejected if it can never run here."""
    if request.kv_policy is not None and request.kv_policy not in config.policies:
        known = ", ".join(sorted(config.policies))
        raise RequestRejected(
            f"kv_policy {request.kv_policy!r} is not offered here; choose one of: {known}", param="kv_policy"
        )
    if not request.prompt:
        raise RequestRejected("the prompt has no tokens; send at least one", param="prompt")
    budget = memory.budget_of(request)
    room = memory.longest(budget)
    needed = len(request.prompt) + min(1, request.params.max_tokens)
    if needed > room:
        raise RequestRejected(_too_long(needed, room, config), param="prompt", code="context_length_exceeded")
    return budget


def _too_long(needed: int, room: int, config: SchedulerConfig) -> str:
    if room == config.max_model_len:
        return (
            f"the prompt and one new token make {needed} tokens, but the context length is {room}; shorten the prompt"
        )
    return (
        f"the prompt and one new token make {needed} tokens, but the KV memory holds {room}; "
        "shorten the prompt or start the server with a larger --kv-cache-memory-bytes"
    )


class Admission:
    """Decides for one step which waiting sequences enter. A sequence without room may be passed, but not for ever.

    There must be room now and, see `Forecast`, while all grow that were let in.
    """

    def __init__(self, memory: KVMemory, forecast: Forecast, queue: WaitingQueue, running: Iterable[Sequence]) -> None:
        self._memory = memory
        self._forecast = forecast
        self._running = tuple(running)
        self._entered = 0.0
        self._entered_ahead: Pages | float = 0.0
        self.candidates = queue.first(LOOKAHEAD)

    def may_enter(self, sequence: Sequence) -> bool:
        """Whether `sequence`, one of the candidates, may enter now; True counts its pages as promised from here on."""
        earlier = [other for other in self.candidates if other.slot is None and other.order < sequence.order]
        if any(other.times_skipped >= _MAX_SKIPS for other in earlier):
            return False
        if self._memory.prefixes.waits_for_sibling(sequence):
            return False
        usable = self._memory.allocator.num_usable
        promised = sum(self._promised) + self._entered  # to others; a newcomer that is alone has all the room there is
        needed = self._memory.needed(sequence)
        if promised > 0 and promised + needed > usable:
            return False
        ahead = self._entered_ahead + self._forecast.pages([sequence], [needed])
        if promised > 0 and (self._promised_ahead + ahead).max() > usable:
            return False
        self._entered += needed
        self._entered_ahead = ahead
        for other in earlier:
            other.times_skipped += 1
        return True

    @cached_property
    def _promised(self) -> list[float]:
        """Pages that each sequence which ran before this step can count on; most steps need not know."""
        return [self._memory.commitment(sequence) - self._memory.shared(sequence) for sequence in self._running]

    @cached_property
    def _promised_ahead(self) -> Pages:
        return self._forecast.pages(self._running, self._promised)
