"""Rows of texts that were read before, found again by the tokens they stand for."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paged_kv.allocator import PageAllocator, PageIds

Key = bytes
_KEY_BYTES = 16


def extend_keys(keys: list[Key], tokens: Sequence[int], page_size: int, salt: str) -> None:
    """Append to `keys` those of the full pages of `tokens` that it lacks: each names its tokens and all before them."""
    for start in range(len(keys) * page_size, len(tokens) - page_size + 1, page_size):
        digest = hashlib.blake2b(keys[-1] if keys else salt.encode(), digest_size=_KEY_BYTES)
        digest.update(np.array(tokens[start : start + page_size], dtype=np.int64).tobytes())
        keys.append(digest.digest())


@dataclass(slots=True)
class _Entry:
    pages: PageIds
    users: int


class PrefixCache:
    """Owns one reference on each page that it holds. Only the scheduler calls it.

    An entry is one page of every lane, [lanes], under the key of its tokens; its rows are complete and never change.
    Sequences that hold its pages are its users. What has users stays; the rest is given up when memory is needed,
    longest unused first. Sequences release the end of their text first, so that it goes before what it continues.
    """

    def __init__(self, allocator: PageAllocator, num_lanes: int) -> None:
        self._allocator = allocator
        self._num_lanes = num_lanes
        self._entries: dict[Key, _Entry] = {}
        self._unused: OrderedDict[Key, None] = OrderedDict()

    @property
    def num_reclaimable(self) -> int:
        """Pages that nobody but the cache holds."""
        return len(self._unused) * self._num_lanes

    def match(self, keys: Sequence[Key]) -> int:
        """How many of `keys`, from the first on, are known."""
        return next((place for place, key in enumerate(keys) if key not in self._entries), len(keys))

    def num_used(self, keys: Sequence[Key]) -> int:
        """How many of `keys`, all of them known, have users."""
        return sum(key not in self._unused for key in keys)

    def num_shared(self, keys: Sequence[Key]) -> int:
        """How many of `keys`, all of them in use and from the first on, have more than one user."""
        return next((place for place, key in enumerate(keys) if self._entries[key].users == 1), len(keys))

    def share_of_others(self, keys: Sequence[Key]) -> float:
        """Pages under `keys`, all of them in use, that their other users count: of n, each counts 1 / n of a page."""
        users = (self._entries[key].users for key in keys[: self.num_shared(keys)])
        return self._num_lanes * sum(1.0 - 1.0 / count for count in users)

    def acquire(self, keys: Sequence[Key]) -> PageIds:
        """Use known `keys`: their pages [lanes, keys], with a reference each for the caller."""
        for key in keys:
            self._use(key)
        pages = np.stack([self._entries[key].pages for key in keys], axis=1)
        self._allocator.share(pages.ravel())
        return pages

    def publish(self, key: Key, pages: PageIds) -> bool:
        """Hold `pages` [lanes] under `key`, with the caller as a user; False, and nothing done, if the key is known."""
        if key in self._entries:
            return False
        self._allocator.share(pages)
        self._entries[key] = _Entry(pages, 1)
        return True

    def release(self, keys: Sequence[Key]) -> None:
        """The caller uses `keys` no longer; its references to pages are its own affair."""
        for key in reversed(keys):
            entry = self._entries[key]
            entry.users -= 1
            if entry.users == 0:
                self._unused[key] = None

    def forget(self, keys: Sequence[Key]) -> None:
        """`release`, and give up at once what nobody else uses."""
        self.release(keys)
        for key in reversed(keys):
            if key in self._unused:
                self._drop(key)

    def drop_rest(self, keys: Sequence[Key]) -> None:
        """Give up what is left of `keys`, which are of use together only, if some of them were given up."""
        known = [key for key in keys if key in self._entries]
        for key in known if len(known) < len(keys) else ():
            if key in self._unused:
                self._drop(key)

    def make_room(self, pages: int) -> None:
        """Give up entries without users until `pages` pages are free, or none is left."""
        while self._unused and self._allocator.num_free < pages:
            self._drop(next(iter(self._unused)))

    def held(self) -> Iterator[PageIds]:
        """The pages of each entry."""
        return (entry.pages for entry in self._entries.values())

    def check_integrity(self, users: Sequence[Sequence[Key]]) -> None:
        """Assert that entries are used by those who say so, and that just the others are in line to be given up."""
        counts = dict.fromkeys(self._entries, 0)
        for keys in users:
            for key in keys:
                counts[key] += 1
        assert counts == {key: entry.users for key, entry in self._entries.items()}, "users were miscounted"
        assert set(self._unused) == {key for key, count in counts.items() if count == 0}

    def _use(self, key: Key) -> None:
        self._entries[key].users += 1
        self._unused.pop(key, None)

    def _drop(self, key: Key) -> None:
        del self._unused[key]
        self._allocator.release(self._entries.pop(key).pages)
