"""What storing a vector costs it, in bytes and in precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paged_kv.basis import Basis, KeyStatistics
from paged_kv.format import load_format
from paged_kv.plugins import names
from paged_kv.pool import KVPool
from tests.paged_kv.lanes import made_up_statistics


def test_bytes_of_a_row() -> None:
    sizes = {name: load_format(name).bytes_per_row(64) for name in names("paged_kv.formats")}
    assert sizes == {"float32": 512, "bfloat16": 256, "int8": 136, "int4": 72}


@given(seed=st.integers(0, 1000), shift=st.floats(-300, 300), spread=st.sampled_from([1e-3, 1.0, 50.0]))
def test_error_of_eight_bits_is_half_a_step(seed: int, shift: float, spread: float) -> None:
    x = random_vectors(seed) * spread + shift
    page_format = load_format("int8")
    stored = page_format.encode(x)
    span = x.amax(-1) - x.amin(-1)
    rounding = x.abs().amax(-1) * 2**-10  # of the zero, which is stored in half precision
    assert ((page_format.decode(stored) - x).abs().amax(-1) <= span / 255 * 0.51 + rounding).all()


@pytest.mark.parametrize(("uneven", "levels"), [(False, (15, 15)), (True, (31, 7))])
@given(seed=st.integers(0, 1000), shift=st.floats(-2, 2), spread=st.sampled_from([1e-3, 1.0, 50.0]))
def test_each_half_of_four_bits_has_a_scale_of_its_own(
    uneven: bool, levels: tuple[int, int], seed: int, shift: float, spread: float
) -> None:
    """No worse than a grid over the half's range, whose step is rounded up by an eighth at most."""
    x = (random_vectors(seed) + shift) * spread
    x[:, 32:] *= 10
    page_format = load_format("int4")
    encode = page_format.encode_uneven if uneven else page_format.encode
    missed = (page_format.decode(encode(x)) - x).square()
    for half, count in zip((slice(32), slice(32, 64)), levels, strict=True):
        part = x[:, half]
        span = torch.maximum((part.amax(-1) - part.amin(-1)) / count, part.abs().amax(-1) / 31)
        assert (missed[:, half].mean(-1) <= (span * 1.125 / 2).square()).all()
        assert missed[:, half].mean() <= (span.square().mean() / 9)


def random_vectors(seed: int) -> torch.Tensor:
    return torch.randn(5, 64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_constant_and_huge_vectors(name: str) -> None:
    page_format = load_format(name)
    constant = torch.full((1, 32), 1.5)
    torch.testing.assert_close(page_format.decode(page_format.encode(constant)), constant, rtol=0.01, atol=0)
    huge = torch.linspace(-1e6, 1e6, 32)[None]
    assert page_format.decode(page_format.encode(huge)).isfinite().all()


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_a_basis_keeps_products_and_spreads_outliers(head_dim: int) -> None:
    basis = Basis(head_dim)
    torch.manual_seed(0)
    queries, keys = torch.randn(2, 7, 1, head_dim)
    assert_same_products(basis, queries, keys)
    torch.testing.assert_close(keys @ basis.values @ basis.outputs, keys, rtol=1e-4, atol=1e-5)
    outlier = torch.zeros(1, 1, head_dim)
    outlier[..., 3] = 8.0
    half = head_dim // 2
    assert basis.turn_keys(outlier, 0).abs().amax() <= 8.0 * (half & -half) ** -0.5 + 1e-6


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_a_measured_basis_keeps_products_and_lays_means_along_ones(head_dim: int) -> None:
    statistics = made_up_statistics(6, head_dim)
    basis = Basis(head_dim, statistics)
    torch.manual_seed(0)
    assert_same_products(basis, torch.randn(7, 9, head_dim), torch.randn(7, 3, head_dim), first_lane=3)
    for half in basis.turn_keys(statistics.mean.unsqueeze(0), 0).chunk(2, dim=-1):
        torch.testing.assert_close(half, half[..., :1].expand_as(half), rtol=1e-4, atol=1e-4)


def test_a_basis_of_keys_that_are_always_zero_is_finite() -> None:
    basis = Basis(32, KeyStatistics(*torch.zeros(3, 2, 32)))
    assert basis.keys.isfinite().all()
    assert basis.queries.isfinite().all()


def test_keys_in_a_measured_basis_give_products_that_are_nearer() -> None:
    statistics = made_up_statistics(1, 64)
    torch.manual_seed(0)
    keys = statistics.mean + torch.randn(500, 1, 64) * statistics.variance.sqrt()
    queries = torch.randn(500, 1, 64) * statistics.query_square.sqrt()
    page_format, missed = load_format("int4"), []
    for basis in (Basis(64), Basis(64, statistics)):
        encode = page_format.encode_uneven if basis.is_uneven else page_format.encode
        stored = page_format.decode(encode(basis.turn_keys(keys, 0)))
        found = (stored * basis.turn_queries(queries, 0, 1)).sum(-1)
        missed.append((found - (keys * queries).sum(-1)).square().mean().item())
    assert missed[1] < missed[0] / 2


def assert_same_products(basis: Basis, queries: torch.Tensor, keys: torch.Tensor, first_lane: int = 0) -> None:
    lanes = keys.shape[1]
    turned = basis.turn_queries(queries, first_lane, lanes).unflatten(1, (lanes, -1))
    products = torch.einsum("nlgd,nld->nlg", turned, basis.turn_keys(keys, first_lane))
    expected = torch.einsum("nlgd,nld->nlg", queries.unflatten(1, (lanes, -1)), keys)
    torch.testing.assert_close(products, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", names("paged_kv.formats"))
def test_a_poisoned_page_decodes_to_nan(name: str) -> None:
    pool = KVPool(3, 4, 32, load_format(name))
    pool.poison(torch.tensor([1]))
    assert pool.format.decode(pool.keys[1]).isnan().all()
    assert pool.format.decode(pool.values[2]).eq(0).all()
