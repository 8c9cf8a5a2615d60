"""New rows enter the pool: every backend stores the same bytes and turns the same queries as the plain one."""

from __future__ import annotations

import pytest
import torch

from csrc.library import available_variants
from paged_kv.attention.cpu import CpuBackend
from paged_kv.backend import load_backend
from paged_kv.observation import Observation
from paged_kv.plugins import names
from paged_kv.rotary import Rotary
from tests.paged_kv.lanes import HEAD_DIM, World


@pytest.mark.parametrize("variant", available_variants())
@pytest.mark.parametrize("page_format", names("paged_kv.formats"))
@pytest.mark.parametrize("is_rotated", [True, False])
@pytest.mark.parametrize("is_measured", [True, False])
def test_as_the_reference_does(variant: str, page_format: str, is_rotated: bool, is_measured: bool) -> None:
    worlds = [
        World(page_format=page_format, observation=Observation("probability"), is_measured=is_measured)
        for _ in range(2)
    ]
    backends = [CpuBackend(variant), load_backend("reference", HEAD_DIM)]
    random = torch.Generator().manual_seed(7)
    fused = torch.randn(6, (2 * 3 + 2 * 2) * HEAD_DIM, generator=random) * 3
    rotary = Rotary.at(torch.tensor([0, 1, 2, 900, 5, 6]), 100.0 ** -torch.linspace(0, 1, HEAD_DIM // 2))
    turned = []
    for world, backend in zip(worlds, backends, strict=True):
        batch = world.append({0: 5, 1: 1})
        world.pool.state.fill_(7)
        turned.append(backend.append(world.pool, 1, fused, rotary if is_rotated else None, batch))
    torch.testing.assert_close(turned[0], turned[1], rtol=1e-5, atol=1e-5)
    lanes = batch.new_slots[:, 2:4].flatten()
    for name in ("keys", "values"):
        ours, theirs = (getattr(world.pool, name).flatten(0, 1)[lanes] for world in worlds)
        if (
            is_rotated or worlds[0].pool.basis is not None
        ):  # a sine or a sum may differ in its last bit, and a code beside it by one
            ours, theirs = worlds[0].pool.format.decode(ours), worlds[0].pool.format.decode(theirs)
            step = {"float32": 1e-6, "bfloat16": 0.1, "int8": 0.1, "int4": 8.0}[page_format]
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=step)
            assert (ours != theirs).float().mean() < 0.02 or page_format == "float32"
        else:
            assert torch.equal(ours, theirs)
    state = worlds[0].pool.state.flatten(0, 1)
    assert state[lanes].eq(0).all()
    assert torch.equal(state, worlds[1].pool.state.flatten(0, 1))


@pytest.mark.parametrize("variant", available_variants())
@pytest.mark.parametrize("is_measured", [True, False])
@pytest.mark.parametrize("head_dim", [32, 64, 96])
@pytest.mark.parametrize("spread", [0.0, 1e-7, 1.0, 1e5])
def test_rounding_to_four_bits_finds_the_same_bytes(
    variant: str, is_measured: bool, head_dim: int, spread: float
) -> None:
    worlds = [
        World(num_layers=1, head_dim=head_dim, page_format="int4", is_measured=is_measured, num_pages=200)
        for _ in range(2)
    ]
    fused = torch.randn(90, (2 * 3 + 2 * 2) * head_dim, generator=torch.Generator().manual_seed(3)) * spread
    for world, backend in zip(worlds, [CpuBackend(variant), load_backend("reference", head_dim)], strict=True):
        assert world.pool.basis is not None  # with nothing to sum up, the numbers to round are the same bits
        plain = torch.eye(head_dim)
        world.pool.basis.values = world.pool.basis.outputs = plain
        world.pool.basis.keys = world.pool.basis.queries = plain.expand(2, -1, -1).contiguous()
        batch = world.append({0: 89, 1: 1})
        backend.append(world.pool, 0, fused, None, batch)
    slots = batch.new_slots.flatten()
    for name in ("keys", "values"):
        ours, theirs = (getattr(world.pool, name).flatten(0, 1)[slots] for world in worlds)
        assert torch.equal(ours, theirs)
