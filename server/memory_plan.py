"""Where the memory goes, and how many sequences that serves: told before anything is served."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

from torch import Tensor

from models.causal_lm import CausalLM
from scheduler.budget import SequenceBudget
from scheduler.scheduler import Scheduler
from server.container import CONTROL_GROUP, memory_limit_and_use

_MIB = 2**20
_TYPICAL_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class Fit:
    """How many sequences of `tokens` tokens the pool holds: whole, and each at its budget (None: nothing evicts)."""

    tokens: int
    whole: int
    at_budget: int | None


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What takes memory, in bytes, and what fits into the pool.

    `resident_bytes`: what the process takes once the model is loaded and nothing is written to the pool yet.
    `limit_bytes`: what the machine has, or its container may take. `token_bytes`: a token's rows in all lanes.
    """

    weight_bytes: int
    pool_bytes: int
    token_bytes: int
    whole_tokens: int
    resident_bytes: int
    limit_bytes: int
    fits: tuple[Fit, ...]

    def problem(self) -> str | None:
        """Why the server would be killed once its pool is full, and what to change; None if there is room for all."""
        room = self.limit_bytes - self.resident_bytes
        if self.pool_bytes <= room:
            return None
        return (
            f"a KV pool of {_mib(self.pool_bytes)} and the {_mib(self.resident_bytes)} that the server takes beside it "
            f"exceed the {_mib(self.limit_bytes)} of this machine or container; "
            f"give at most --kv-cache-memory-bytes {max(0, room) // _MIB}MiB"
        )

    def lines(self) -> Iterator[str]:
        """A table for an operator."""
        yield f"weights            {_mib(self.weight_bytes)}"
        yield f"KV pool            {_mib(self.pool_bytes)}"
        yield f"process, pool full {_mib(self.resident_bytes + self.pool_bytes)} of {_mib(self.limit_bytes)}"
        yield f"a token            {self.token_bytes:,} bytes"
        yield f"tokens that fit    {self.whole_tokens:,} uncompressed"
        for fit in self.fits:
            shrunk = "" if fit.at_budget is None else f", {fit.at_budget:,} at the budget"
            yield f"sequences of {fit.tokens:<6,}{fit.whole:,} uncompressed{shrunk}"


def plan_memory(model: CausalLM, scheduler: Scheduler, page_bytes: int) -> MemoryPlan:
    """The plan for what was loaded. `page_bytes`: of one page, everything included."""
    config, memory = scheduler.config, scheduler.memory
    rules = config.policies[config.default_policy]
    budget = None if rules is None else SequenceBudget(rules, config.default_budget)

    def fit(tokens: int) -> Fit:
        usable, whole = memory.allocator.num_usable, memory.equal_lanes(tokens)
        if budget is None:
            return Fit(tokens, usable // whole, None)
        return Fit(tokens, usable // whole, usable // min(whole, memory.unequal_lanes(budget.high(tokens) + 1)))

    return MemoryPlan(
        weight_bytes=sum(weight_sizes(model)),
        pool_bytes=config.num_pages * page_bytes,
        token_bytes=page_bytes // config.page_size * config.num_lanes,
        whole_tokens=memory.allocator.num_usable // config.num_lanes * config.page_size,
        resident_bytes=resident_bytes(),
        limit_bytes=memory_limit(),
        fits=tuple(
            fit(tokens) for tokens in sorted({min(_TYPICAL_TOKENS, config.max_model_len), config.max_model_len})
        ),
    )


def weight_sizes(model: CausalLM) -> Iterator[int]:
    """The bytes of each tensor that `model` holds; what several parts share counts once."""
    seen: set[int] = set()
    waiting: list[object] = [model]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor):
            part = part.untyped_storage()
            if part.data_ptr() not in seen:
                seen.add(part.data_ptr())
                yield part.nbytes()
        elif isinstance(part, list | tuple):
            waiting += part
        elif type(part).__module__.startswith("models."):
            waiting += (
                [getattr(part, field.name) for field in fields(part)] if is_dataclass(part) else vars(part).values()
            )


def memory_limit(control_group: Path = CONTROL_GROUP) -> int:
    """Bytes that this process may take at most: the machine's, or fewer in a container with a limit."""
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = memory_limit_and_use(control_group)
    return limit if memory is None else min(limit, memory[0])


def resident_bytes() -> int:
    """Bytes of memory that this process takes now; where the system does not tell, the most it ever took."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _mib(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB"
