"""Every attention backend against the definition."""

from __future__ import annotations

import pytest
import torch

from csrc.library import available_variants
from paged_kv.attention.cpu import CpuBackend
from paged_kv.backend import AttentionBackend, load_backend
from paged_kv.format import QuantizedFormat
from paged_kv.observation import Observation
from paged_kv.plugins import names
from tests.paged_kv.lanes import HEAD_DIM, World

VARIANTS = available_variants()
BACKENDS = [*names("paged_kv.attention"), *VARIANTS]
OBSERVATIONS = [
    Observation("probability"),
    Observation("probability", decay=0.0),
    Observation("square", decay=0.5),
    Observation("unimportant", decay=0.9),
    Observation("unimportant", window=16),
    Observation("unimportant", window=16, counters=2),
    Observation("probability", window=5),
    Observation("probability", window=16, counters=4),
]
TOLERANCE = 3e-6  # rows are compared as stored, so the format's own error is not in it
# Of kernels that meet codes with queries and weights in 16 bits: a hundredth of what rows lose by their codes, or less.
WHOLE_TOLERANCE = {8: 4e-4, 4: 3e-3}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    return CpuBackend(request.param) if request.param in VARIANTS else load_backend(request.param, HEAD_DIM)


def assert_matches(backend: AttentionBackend, world: World, counts: dict[int, int]) -> None:
    bits = 4 if world.pool.format.turns_rows else 8 if isinstance(world.pool.format, QuantizedFormat) else 32
    tolerance = WHOLE_TOLERANCE.get(bits, TOLERANCE) if isinstance(backend, CpuBackend) else TOLERANCE
    batch = world.append(counts)
    for layer in range(world.num_layers):
        queries = world.normal(sum(counts.values()), world.kv_heads * world.group, world.head_dim)
        got = backend.attend(world.pool, layer, queries, batch)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, world.naive_attention(layer, queries, counts), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("page_format", names("paged_kv.formats"))
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (1, 4), (3, 1), (2, 3)])
def test_mixed_batches(backend: AttentionBackend, page_format: str, page_size: int, kv_heads: int, group: int) -> None:
    world = World(page_format=page_format, page_size=page_size, kv_heads=kv_heads, group=group)
    for counts in ({0: 5, 1: 1}, {0: 1, 1: 3, 2: 9}, {0: 1, 1: 1, 2: 1}, {2: 1}):
        assert_matches(backend, world, counts)
        world.check_integrity()


@pytest.mark.parametrize(
    ("page_format", "head_dim"),
    [("float32", size) for size in (16, 48, 64, 80, 128)]
    + [(name, size) for name in ("int8", "int4") for size in (32, 64, 96, 128)]
    + [("int8", 256), ("int8", 320)],
)
@pytest.mark.parametrize("is_measured", [True, False])
def test_widths_of_rows(backend: AttentionBackend, page_format: str, head_dim: int, is_measured: bool) -> None:
    world = World(head_dim=head_dim, page_format=page_format, is_measured=is_measured)
    assert_matches(backend, world, {0: 70, 1: 1})
    assert_matches(backend, world, {0: 1, 1: 3})


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("page_format", "head_dim"),
    [("float32", size) for size in (16, 64, 80)]
    + [(name, size) for name in ("int8", "int4") for size in (32, 64, 96, 128)],
)
def test_a_query_gets_the_same_bits_in_any_chunk(variant: str, page_format: str, head_dim: int) -> None:
    """Also where its lane is shared between tasks, and where it stands in a tile of many."""
    backend, results = CpuBackend(variant), []
    for chunks in ([700], [1] * 3 + [500, 197], [650, 7, 43], [696, 1, 1, 1, 1]):
        world = World(
            num_layers=1,
            kv_heads=1,
            group=3,
            page_size=16,
            num_pages=100,
            head_dim=head_dim,
            page_format=page_format,
            seed=9,
        )
        keys, values, queries = (world.normal(700, lanes, head_dim) for lanes in (1, 1, 3))
        outputs = []
        for count in chunks:
            done = sum(output.shape[0] for output in outputs)
            part = slice(done, done + count)
            batch = world.append({0: count})
            world.pool.write(batch.new_slots, keys[part], values[part])
            outputs.append(backend.attend(world.pool, 0, queries[part], batch))
        results.append(torch.cat(outputs))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("page_format", ["int8", "int4"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_tile_registers_change_no_bit(page_format: str, head_dim: int) -> None:
    if "amx" not in VARIANTS:
        pytest.skip("this CPU has none")
    results = []
    for variant in ("amx", "avx512"):
        world = World(head_dim=head_dim, page_format=page_format, page_size=16, seed=2)
        world.append({0: 100, 1: 20})
        batch = world.append({0: 150, 1: 5, 2: 70})
        queries = world.normal(225, world.kv_heads * world.group, head_dim)
        results.append(CpuBackend(variant).attend(world.pool, 0, queries, batch))
    assert torch.equal(*results)


@pytest.mark.parametrize("number", [float("nan"), 1e30, 1e-40])
def test_numbers_that_no_step_can_hold_stay_with_their_own_query(number: float) -> None:
    world = World(num_layers=1, head_dim=64, page_format="int8", page_size=16)
    batch = world.append({0: 40})
    queries = world.normal(40, world.kv_heads * world.group, 64)
    backend = load_backend("auto", 64)
    clean = backend.attend(world.pool, 0, queries, batch).clone()
    queries[7, 2] = number
    marked = backend.attend(world.pool, 0, queries, batch)
    others = torch.ones(40, world.kv_heads * world.group, dtype=torch.bool)
    others[7, 2] = False
    assert torch.equal(marked[others], clean[others])
    assert bool(marked[7, 2].isnan().any()) == (number != number)


def test_lanes_of_very_different_lengths(backend: AttentionBackend) -> None:
    world = World(num_layers=2, kv_heads=3)
    world.append({0: 40, 1: 40})
    world.truncate(0, [40, 1, 7, 2, 33, 16])
    world.truncate(1, [1, 1, 1, 1, 1, 1])
    assert_matches(backend, world, {0: 1, 1: 1})
    assert_matches(backend, world, {0: 6, 1: 1, 2: 3})


def test_tile_borders_of_a_long_chunk(backend: AttentionBackend) -> None:
    world = World(num_layers=1, kv_heads=1, group=1, num_pages=300)
    world.append({0: 9})
    assert_matches(backend, world, {0: 300, 1: 128, 2: 129})


def test_a_reused_page_shows_nothing_of_its_past(backend: AttentionBackend) -> None:
    """Freed pages are full of NaN here; a result that touches a stale row is NaN too."""
    world = World(num_pages=50)
    world.append({0: 20})
    world.truncate(0, [3, 3, 3, 3])
    assert_matches(backend, world, {1: 17, 0: 1})


@pytest.mark.parametrize("observation", OBSERVATIONS, ids=str)
@pytest.mark.parametrize("length", [12, 75])
def test_what_is_observed_does_not_depend_on_the_chunking(
    backend: AttentionBackend, observation: Observation, length: int
) -> None:
    """Also where a chunk outgrows a window, so that its first queries would leave no trace."""
    statistics = []
    for chunks in ([length], [5, length - 5], [length - 9, 9], [1] * length):
        world = World(num_layers=1, observation=observation, seed=3)
        keys, values = (world.normal(length, world.num_lanes, HEAD_DIM) for _ in range(2))
        queries = world.normal(length, world.kv_heads * world.group, HEAD_DIM)
        first = 0
        for count in chunks:
            batch = world.append({0: count}, observed=True)
            part = slice(first, first + count)
            world.pool.write(batch.new_slots, keys[part], values[part])
            backend.attend(world.pool, 0, queries[part], batch)
            first += count
        state = world.pool.state.flatten(0, 1)[world.mirror.slots_of_rows(0)]
        statistics.append(observation.statistic(state))
    precision = {"rtol": 2e-3, "atol": 1e-5} if observation.sums else {"rtol": 1e-5, "atol": 1e-6}
    for other in statistics[1:]:
        torch.testing.assert_close(other, statistics[0], **precision)
    if observation.measure == "unimportant":
        assert statistics[0][:, -1].max().item() <= 1, "no query counts against a row that it did not see"
    if observation.measure == "probability":
        oldest = 0 if observation.decay else length - 1
        if observation.span:
            oldest = max(0, (length - 1) // observation.span - observation.sums + 1) * observation.span
        assert statistics[0].sum().item() == pytest.approx((length - oldest) * world.num_lanes, rel=1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("observation", OBSERVATIONS, ids=str)
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("chunks", [[30, 1, 1], [3, 20, 9], [70, 1]])
def test_notes_are_those_of_the_reference(
    variant: str, observation: Observation, page_size: int, chunks: list[int]
) -> None:
    statistics = []
    for backend in (CpuBackend(variant), load_backend("reference", HEAD_DIM)):
        world = World(num_layers=1, page_size=page_size, num_pages=600, observation=observation, seed=5)
        for count in chunks:
            batch = world.append({0: count, 1: 1}, observed=True)
            backend.attend(world.pool, 0, 3 * world.normal(count + 1, world.kv_heads * world.group, HEAD_DIM), batch)
        slots = torch.cat([world.mirror.slots_of_rows(slot).flatten() for slot in (0, 1)])
        statistics.append(observation.statistic(world.pool.state.flatten(0, 1)[slots]))
    # A weight that is all but equal to its threshold may count on one side only.
    precision = 2e-3 if observation.sums else 1e-4
    near = torch.isclose(*statistics, rtol=precision, atol=1e-6)
    assert near.float().mean() > (0.97 if observation.measure == "unimportant" else 0.9999)


def test_only_observed_sequences_leave_a_note(backend: AttentionBackend) -> None:
    world = World(num_layers=1, observation=Observation("probability"))
    world.append({0: 4, 1: 4})
    batch = world.append({0: 1, 1: 1})
    batch = world.mirror.batch([0, 1], [1, 1], [4, 4], (True, False))
    backend.attend(world.pool, 0, world.normal(2, world.kv_heads * world.group, HEAD_DIM), batch)
    noted = [
        world.pool.observation.statistic(world.pool.state.flatten(0, 1)[world.mirror.slots_of_rows(slot)]).sum().item()
        for slot in (0, 1)
        if world.pool.observation
    ]
    assert noted == [pytest.approx(world.num_lanes, rel=1e-5), 0.0]


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="reference"):
        load_backend("fast", HEAD_DIM)


def test_automatic_choice_is_what_can_run() -> None:
    assert "C++" in str(load_backend("auto", 64))
    assert str(load_backend("auto", 20)) == "plain torch"
    with pytest.raises(ValueError, match="head_dim 20 is no multiple"):
        load_backend("cpu", 20)
