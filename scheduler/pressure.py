"""The second rung of memory's ladder: sequences give up rows together, down to what each one's budget protects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import ceil

from scheduler.memory import KVMemory
from scheduler.plan import Contest
from scheduler.sequence import Sequence

_SHARE_AT_ONCE = 0.25  # of what can be given: more might not be needed
_SHARE_OF_POOL = 0.0625  # what is given at least if it can be: with less, memory is short again soon
_MOST_MEMBERS = 8  # bounds the time for which a step stops, unless that many cannot give enough


class Pressure:
    """Who competes in one step, and how many pages they give; part of `StepBuilder`.

    `gains`: pages that each sequence can give, see `KVMemory.squeezable`. All members are of one policy, that which can
    give most; those who can give most come first. `needed`: pages that must be given, if that can be; `pool`: pages
    that there are. `members` are by slot.
    """

    def __init__(self, gains: Iterable[tuple[int, Sequence]], needed: int, pool: int) -> None:
        offers = sorted(((gain, sequence) for gain, sequence in gains if gain), key=lambda offer: -offer[0])
        totals: Counter[str] = Counter()
        for gain, sequence in offers:
            totals[sequence.policy] += gain
        policy = totals.most_common(1)[0][0] if totals else None
        self.members: dict[int, Sequence] = {}
        least = max(needed, ceil(_SHARE_OF_POOL * pool))
        self._most = 0
        self._given = 0
        for gain, sequence in offers:
            if sequence.policy == policy and (self._most < least or len(self.members) < _MOST_MEMBERS):
                assert sequence.slot is not None
                self.members[sequence.slot] = sequence
                self._most += gain
        self._worthwhile = max(least, ceil(_SHARE_AT_ONCE * self._most))

    def give(self, pages: int, soon: int) -> int:
        """Promise `pages` more, or `soon`, or what is worth the effort; returns how many, 0 if no more can be."""
        wanted = max(pages, soon, self._worthwhile - self._given)
        given = min(wanted, self._most - self._given)
        self._given += given
        return given

    def contest(self, memory: KVMemory, seen: Callable[[Sequence], int]) -> Contest | None:
        """The order to give what was promised; `seen`: tokens of each member that are computed by then."""
        if not self.members:
            return None
        members = self.members.values()
        orders = tuple(memory.squeeze(member, seen(member)) for member in members)
        held = sum(memory.held_with_room(member) for member in members)
        least = sum(memory.least_in_place(member, seen(member)) for member in members)
        return Contest(orders, max(held - self._given, least))
