"""The prefix cache by itself: what it finds, what it gives up, and in which order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paged_kv.allocator import PageAllocator
from paged_kv.prefix import Key, PrefixCache, extend_keys

LANES = 3


def keys_of(tokens: list[int], page_size: int = 4, salt: str = "") -> list[Key]:
    keys: list[Key] = []
    extend_keys(keys, tokens, page_size, salt)
    return keys


@given(
    one=st.lists(st.integers(0, 3), max_size=30),
    other=st.lists(st.integers(0, 3), max_size=30),
    salts=st.tuples(st.sampled_from(["", "a"]), st.sampled_from(["", "a"])),
)
def test_keys_are_equal_as_far_as_texts_and_salts_are(one: list[int], other: list[int], salts: tuple[str, str]) -> None:
    first, second = keys_of(one, salt=salts[0]), keys_of(other, salt=salts[1])
    assert len(first) == len(one) // 4
    for place in range(min(len(first), len(second))):
        alike = salts[0] == salts[1] and one[: 4 * place + 4] == other[: 4 * place + 4]
        assert (first[place] == second[place]) == alike


@given(cuts=st.lists(st.integers(0, 40), max_size=5))
def test_keys_can_be_extended_bit_by_bit(cuts: list[int]) -> None:
    tokens = list(range(40))
    keys: list[Key] = []
    for cut in sorted(cuts):
        extend_keys(keys, tokens[:cut], 4, "s")
    extend_keys(keys, tokens, 4, "s")
    assert keys == keys_of(tokens, salt="s")


class Reader:
    """A sequence as the cache sees it."""

    def __init__(self, cache: PrefixCache, allocator: PageAllocator, tokens: list[int]) -> None:
        self._cache, self._allocator = cache, allocator
        keys = keys_of(tokens)
        found = cache.match(keys)
        self.keys = keys[:found]
        self.pages = [*cache.acquire(self.keys).T] if found else []
        for key in keys[found:]:
            pages = allocator.allocate(LANES)
            self.pages.append(pages)
            if len(self.keys) == len(self.pages) - 1 and cache.publish(key, pages):
                self.keys.append(key)

    def leave(self) -> None:
        self._cache.release(self.keys)
        for pages in self.pages:
            self._allocator.release(pages)


@given(data=st.data())
def test_pages_are_found_shared_and_given_up(data: st.DataObject) -> None:
    allocator = PageAllocator(1 + 40 * LANES)
    cache = PrefixCache(allocator, LANES)
    known: dict[Key, np.ndarray] = {}  # type: ignore[type-arg]
    readers: list[Reader] = []
    for _ in range(data.draw(st.integers(1, 20))):
        if readers and data.draw(st.booleans()):
            readers.pop(data.draw(st.integers(0, len(readers) - 1))).leave()
        else:
            tokens = data.draw(st.lists(st.integers(0, 1), max_size=20))
            cache.make_room(LANES * (len(tokens) // 4))
            if allocator.num_free >= LANES * (len(tokens) // 4):
                readers.append(Reader(cache, allocator, tokens))
        for reader in readers:
            for key, pages in zip(reader.keys, reader.pages, strict=False):
                assert np.array_equal(known.setdefault(key, pages), pages)
        known = {key: known[key] for key in known if cache.match([key])}
        cache.check_integrity([reader.keys for reader in readers])
        held = [pages for reader in readers for pages in reader.pages]
        allocator.check_integrity([*held, *cache.held()])
    for reader in readers:
        reader.leave()
    assert allocator.num_free + cache.num_reclaimable == allocator.num_usable
    cache.make_room(allocator.num_usable)
    assert allocator.num_free == allocator.num_usable


def test_the_longest_unused_goes_first_and_ends_before_beginnings() -> None:
    allocator = PageAllocator(1 + 6 * LANES)
    cache = PrefixCache(allocator, LANES)
    old, new = [0] * 12, [1] * 12
    for tokens in (old, new, old):
        Reader(cache, allocator, tokens).leave()
    order = []
    while allocator.num_free < allocator.num_usable:
        cache.make_room(allocator.num_free + 1)
        order.append((cache.match(keys_of(new)), cache.match(keys_of(old))))
    assert order == [(2, 3), (1, 3), (0, 3), (0, 2), (0, 1), (0, 0)]


def test_what_is_used_is_never_given_up() -> None:
    allocator = PageAllocator(1 + 6 * LANES)
    cache = PrefixCache(allocator, LANES)
    reader = Reader(cache, allocator, [0] * 12)
    cache.make_room(allocator.num_usable)
    assert cache.match(keys_of([0] * 12)) == 3
    reader.leave()
    cache.make_room(allocator.num_usable)
    assert cache.match(keys_of([0] * 12)) == 0


def test_forgetting_spares_what_others_use() -> None:
    allocator = PageAllocator(1 + 6 * LANES)
    cache = PrefixCache(allocator, LANES)
    alone, other = Reader(cache, allocator, [0] * 12), Reader(cache, allocator, [0] * 4 + [1] * 4)
    cache.forget(alone.keys)
    assert cache.match(keys_of([0] * 12)) == 1
    assert (allocator.references(alone.pages[0]) == 3).all()
    assert (allocator.references(alone.pages[1]) == 1).all()
    cache.check_integrity([other.keys])
