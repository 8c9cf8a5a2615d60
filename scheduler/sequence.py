"""One choice of a request on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from paged_kv.allocator import PageIds
from paged_kv.prefix import Key
from paged_kv.table import PageTable, TableUpdate
from scheduler.budget import SequenceBudget
from scheduler.request import (
    Constraint,
    Finish,
    FinishReason,
    GenerationRequest,
    KVUsage,
    Timings,
    TokenLogprob,
    Unsatisfiable,
)


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence is over; see `scheduler.request.Finish`."""

    reason: FinishReason
    stop_token: int | None = None
    error: str | Unsatisfiable | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned by the scheduler. Two numbers drive it: `num_computed` tokens are in the cache, `len(tokens)` should be.

    `tokens` holds the prompt and what was generated. `budget` None: never evicted. `slot` None: waiting.
    `max_len`: tokens at which it ends for want of context or memory. `leader`: choice 0 of its request, None for it.
    `keys` name its full pages of tokens, for the prefix cache, whose entries under `used_keys`, the first of them, it
    uses. `num_reused`: tokens found there when it first ran. `adopted`: pages found, of which the runner has not heard.
    `fresh`: pages that wait for the rows that the step under way leaves. `preempted_in`: the attempt to plan a step in
    which it was preempted last.
    """

    request: GenerationRequest
    index: int
    order: tuple[int, int]
    policy: str
    budget: SequenceBudget | None
    max_len: int
    arrived: float
    tokens: list[int]
    table: PageTable
    slot: int | None = None
    num_computed: int = 0
    rows_evicted: int = 0
    num_preemptions: int = 0
    times_skipped: int = 0
    preempted_in: int | None = None
    first_scheduled: float | None = None
    first_token: float | None = None
    ending: Ending | None = None
    constraint: Constraint | None = None
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    leader: Sequence | None = None
    keys: list[Key] = field(default_factory=list)
    used_keys: list[Key] = field(default_factory=list)
    num_reused: int | None = None
    adopted: TableUpdate | None = None
    fresh: PageIds | None = None

    @property
    def num_prompt(self) -> int:
        """Tokens of the request's prompt."""
        return len(self.request.prompt)

    @property
    def num_generated(self) -> int:
        """Tokens drawn so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def gap(self) -> int:
        """Tokens that are known but not in the cache yet."""
        return len(self.tokens) - self.num_computed

    @property
    def is_compressed(self) -> bool:
        """True once rows of what is in the cache were evicted."""
        return self.table.total_rows < self.num_computed * self.table.num_lanes

    @property
    def is_decoding(self) -> bool:
        """True when the cache lacks the newest token only."""
        return self.gap == 1 and self.num_generated > 0

    @property
    def scores_prompt(self) -> bool:
        """True while logprobs of prompt tokens are still wanted. Only choice 0 reports them."""
        wanted = self.request.params.prompt_logprobs is not None and self.index == 0
        return wanted and len(self.prompt_logprobs) < self.num_prompt

    @property
    def _cached_tokens(self) -> int:
        """Tokens of the prompt that were not computed; the prompt of a request counts once, so choice 0 reports it."""
        return min(self.num_reused or 0, self.num_prompt) if self.leader is None else 0

    def finish(self, now: float) -> Finish:
        """The terminal value of this choice, with its rows as they stand now. It must have an ending."""
        assert self.ending is not None
        lanes = self.table.num_lanes
        usage = KVUsage(
            self.table.total_rows / lanes, self.rows_evicted / lanes, self.num_preemptions, self._cached_tokens
        )
        timings = Timings(self.arrived, self.first_scheduled, self.first_token, now)
        return Finish(self.ending.reason, usage, timings, self.ending.stop_token, self.ending.error)
