"""What storing a vector costs it, in bytes and in precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paged_kv.format import load_format
from paged_kv.plugins import names
from paged_kv.pool import KVPool
from paged_kv.rotation import Rotation

LEVELS = {"int8": 255, "int4": 15}


def test_bytes_of_a_row() -> None:
    sizes = {name: load_format(name).bytes_per_row(64) for name in names("paged_kv.formats")}
    assert sizes == {"float32": 512, "bfloat16": 256, "int8": 136, "int4": 72}


@pytest.mark.parametrize("name", LEVELS)
@given(seed=st.integers(0, 1000), shift=st.floats(-300, 300), spread=st.sampled_from([1e-3, 1.0, 50.0]))
def test_error_is_half_a_step(name: str, seed: int, shift: float, spread: float) -> None:
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(seed)) * spread + shift
    page_format = load_format(name)
    stored = page_format.encode(x)
    assert stored.dtype == torch.uint8
    assert stored.shape == (5, page_format.width(64))
    span = x.amax(-1) - x.amin(-1)
    rounding = x.abs().amax(-1) * 2**-10  # of the zero, which is stored in half precision
    assert ((page_format.decode(stored) - x).abs().amax(-1) <= span / LEVELS[name] * 0.51 + rounding).all()


@pytest.mark.parametrize("name", LEVELS)
def test_constant_and_huge_vectors(name: str) -> None:
    page_format = load_format(name)
    constant = torch.full((1, 32), 1.5)
    assert torch.equal(page_format.decode(page_format.encode(constant)), constant)
    huge = torch.linspace(-1e6, 1e6, 32)[None]
    assert page_format.decode(page_format.encode(huge)).isfinite().all()


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_rotation_keeps_products_and_spreads_outliers(head_dim: int) -> None:
    rotation = Rotation(head_dim)
    torch.manual_seed(0)
    queries, keys = torch.randn(2, 7, head_dim)
    torch.testing.assert_close(rotation(queries) @ rotation(keys).T, queries @ keys.T, rtol=1e-4, atol=1e-4)
    outlier = torch.zeros(1, head_dim)
    outlier[0, 3] = 8.0
    assert rotation(outlier).abs().amax() <= 8.0 * rotation.block**-0.5 + 1e-6


@pytest.mark.parametrize("name", names("paged_kv.formats"))
def test_a_poisoned_page_decodes_to_nan(name: str) -> None:
    pool = KVPool(3, 4, 32, load_format(name))
    pool.poison(torch.tensor([1]))
    assert pool.format.decode(pool.keys[1]).isnan().all()
    assert pool.format.decode(pool.values[2]).eq(0).all()
