"""Queries meet the rows of their own block in 8 bits, all others as pages hold them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from csrc.library import available_variants
from paged_kv.allocator import PageAllocator
from paged_kv.attention.cpu import CpuBackend
from paged_kv.attention.reference import ReferenceBackend
from paged_kv.backend import AttentionBackend
from paged_kv.batch import PagedBatch, TableMirror
from paged_kv.format import load_format
from paged_kv.fresh import FreshRows
from paged_kv.observation import Observation
from paged_kv.pool import KVPool
from paged_kv.table import PageTable
from tests.paged_kv.lanes import made_up_statistics

LAYERS, KV_HEADS, GROUP, PAGE = 2, 2, 3, 4
BACKENDS = ["reference", *available_variants()]
Outputs = dict[int, list[Tensor]]
"""By sequence: what each of its tokens got, [layers, heads, head_dim]."""


def backend_of(name: str) -> AttentionBackend:
    return ReferenceBackend() if name == "reference" else CpuBackend(name)


class Text:
    """What the model would make of one text: `fused` of each token and layer, the same however it is read."""

    def __init__(self, length: int, head_dim: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.head_dim = head_dim
        self.fused = torch.randn(LAYERS, length, (GROUP + 2) * KV_HEADS * head_dim, generator=random)

    def parts(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        heads = GROUP * KV_HEADS
        parts = self.fused[layer].view(self.fused.shape[1], -1, self.head_dim)
        queries, keys, values = parts.split((heads, KV_HEADS, KV_HEADS), dim=1)
        return queries, keys, values


class Reader:
    """Reads texts, a slot each, through a backend."""

    def __init__(self, backend: AttentionBackend, texts: dict[int, Text], block: int, observes: bool = False) -> None:
        self.backend, self.texts = backend, texts
        head_dim = next(iter(texts.values())).head_dim
        self.pool = KVPool(
            2000,
            PAGE,
            head_dim,
            load_format("int4"),
            Observation("probability") if observes else None,
            None,
            made_up_statistics(LAYERS * KV_HEADS, head_dim),
            FreshRows(8, LAYERS * KV_HEADS, head_dim, block),
        )
        self.allocator = PageAllocator(2000)
        self.mirror = TableMirror(8, LAYERS, KV_HEADS, PAGE)
        self.tables = {slot: PageTable(LAYERS * KV_HEADS, PAGE) for slot in texts}
        self.read = dict.fromkeys(texts, 0)
        self.outputs: Outputs = {slot: [] for slot in texts}

    def step(self, counts: dict[int, int]) -> None:
        for slot, count in counts.items():
            self.mirror.extend(slot, self.tables[slot].extend(count, self.allocator), count)
        begun = [self.read[slot] for slot in counts]
        observed = (self.pool.observation is not None,) * len(counts)
        batch = self.mirror.batch(list(counts), list(counts.values()), begun, observed)
        layers = []
        for layer in range(LAYERS):
            fused = torch.cat([self.texts[s].fused[layer, self.read[s] : self.read[s] + n] for s, n in counts.items()])
            queries = self.backend.append(self.pool, layer, fused, None, batch)
            layers.append(self.backend.attend(self.pool, layer, queries, batch))
        self._keep(torch.stack(layers, dim=1), batch, counts)

    def _keep(self, outputs: Tensor, batch: PagedBatch, counts: dict[int, int]) -> None:
        for slot, start, stop in zip(counts, batch.starts, batch.starts[1:], strict=False):
            self.outputs[slot] += list(outputs[start:stop])
            self.read[slot] += stop - start

    def evict(self, slot: int, first: int, count: int) -> None:
        """Drop `count` rows of every lane from row `first` on, as a compression does."""
        rows = self.mirror.slots_of_rows(slot)
        kept = int(self.mirror.kept(slot)[0])
        moved = torch.full((rows.shape[0],), kept - first - count)
        self.pool.move(rows[:, first + count : kept].flatten(), rows[:, first : kept - count].flatten(), moved)
        left = np.full(LAYERS * KV_HEADS, kept - count, dtype=np.int32)
        self.pool.poison(torch.from_numpy(self.tables[slot].shrink(left, self.allocator)).long())
        self.mirror.truncate(slot, torch.from_numpy(left).long())

    def all(self, slot: int) -> Tensor:
        return torch.stack(self.outputs[slot])


def by_definition(reader: Reader, slot: int, block: int, evicted: range = range(0), since: int = 0) -> Tensor:
    """Query by query: rows of its own block in int8, those before in int4, without `evicted` from token `since` on."""
    text, basis, heads = reader.texts[slot], reader.pool.basis, GROUP * KV_HEADS
    assert basis is not None
    length = text.fused.shape[1]
    output = torch.zeros(length, LAYERS, heads, text.head_dim)
    int4, int8 = load_format("int4"), load_format("int8")
    for layer in range(LAYERS):
        queries, keys, values = text.parts(layer)
        turned, turned_values = basis.turn_keys(keys, layer * KV_HEADS), values @ basis.values
        queries = basis.turn_queries(queries, layer * KV_HEADS, KV_HEADS)
        old = (int4.decode(int4.encode_uneven(turned)), int4.decode(int4.encode(turned_values)))
        new = tuple(int8.decode(int8.encode(each)) for each in (turned, turned_values))
        for token in range(length):
            far = [r for r in range(token // block * block) if token < since or r not in evicted]
            near = slice(token // block * block, token + 1)
            for head in range(heads):
                seen = [
                    torch.cat((o[far, head // GROUP], n[near, head // GROUP])) for o, n in zip(old, new, strict=True)
                ]
                weights = (seen[0].double() @ queries[token, head].double() * text.head_dim**-0.5).softmax(0)
                output[token, layer, head] = (weights @ seen[1].double()).float()
    return output @ basis.outputs


@pytest.mark.parametrize("head_dim", [32, 64])
@pytest.mark.parametrize("block", [4, 8, 32])
@pytest.mark.parametrize("name", BACKENDS)
def test_it_is_what_the_definition_says(name: str, block: int, head_dim: int) -> None:
    texts = {3: Text(70, head_dim, 1), 0: Text(41, head_dim, 2)}
    reader = Reader(backend_of(name), texts, block)
    for counts in ({3: 37, 0: 5}, {0: 1, 3: 1}, {3: 1, 0: 1}, {0: 33}, {3: 2, 0: 1}, {3: 29}):
        reader.step(counts)
    for slot in texts:
        torch.testing.assert_close(reader.all(slot), by_definition(reader, slot, block), atol=3e-3, rtol=3e-3)


@pytest.mark.parametrize("name", BACKENDS[1:])
@pytest.mark.parametrize("chunks", [[1] * 80, [7] * 11 + [3], [32, 32, 16], [50, 1, 1, 28]], ids=len)
def test_chunks_and_neighbours_change_no_bit(name: str, chunks: list[int]) -> None:
    texts = {1: Text(80, 64, 1), 2: Text(80, 64, 2)}
    whole, parts = (Reader(backend_of(name), texts, block=32) for _ in range(2))
    whole.step({1: 80})
    for chunk in chunks:
        parts.step({2: 1, 1: chunk} if parts.read[2] < 80 else {1: chunk})
    assert torch.equal(whole.all(1), parts.all(1))


@pytest.mark.parametrize("name", BACKENDS)
def test_rows_of_other_blocks_can_go(name: str) -> None:
    texts = {0: Text(60, 64, 1)}
    reader = Reader(backend_of(name), texts, block=8)
    reader.step({0: 45})
    reader.evict(0, 3, 20)
    for counts in ({0: 1}, {0: 2}, {0: 12}):
        reader.step(counts)
    expected = by_definition(reader, 0, 8, range(3, 23), since=45)
    torch.testing.assert_close(reader.all(0), expected, atol=3e-3, rtol=3e-3)


@pytest.mark.parametrize("name", BACKENDS[1:])
def test_what_is_observed_is_what_the_reference_observes(name: str) -> None:
    texts = {0: Text(60, 64, 1)}
    readers = [Reader(backend_of(each), texts, block=8, observes=True) for each in ("reference", name)]
    for reader in readers:
        for counts in ({0: 37}, {0: 1}, {0: 22}):
            reader.step(counts)
    states = [reader.pool.state.view(torch.float32) for reader in readers]
    torch.testing.assert_close(states[1], states[0], atol=3e-3, rtol=3e-3)


def test_a_slot_can_be_saved() -> None:
    fresh = FreshRows(3, 2, 32, 4)
    fresh.keys[1], fresh.values[1] = 7, 9
    fresh.restore(2, fresh.saved(1))
    assert (fresh.keys[2] == 7).all()
    assert (fresh.values[2] == 9).all()
    assert not fresh.keys[0].any()
