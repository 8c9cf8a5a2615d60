"""8-bit linear layers in C++ against the same arithmetic in torch, for every instruction set that runs here."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from csrc.library import Kernels, available_variants, pack
from models.linear import GROUP, FloatLinear, Int8Linear, RmsNorm

VARIANTS = available_variants()


@pytest.fixture(params=VARIANTS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


def on_levels(n: int, k: int, *, symmetric: bool = False) -> Tensor:
    """Weights as a GGUF file in Q4_1 (or Q4_0) holds them: 16 levels per group of 32, step and least in float16."""
    codes = torch.randint(0, 16, (n, k // GROUP, GROUP)).float()
    codes[..., 0], codes[..., 1] = 0, 15
    step = (torch.rand(n, k // GROUP, 1) * 0.02 + 0.001).half().float()
    least = -8 * step if symmetric else (-torch.rand(n, k // GROUP, 1) * 0.1).half().float()
    return (codes * step + least).view(n, k)


def rounded(x: Tensor, levels: Tensor | float, *, half_scale: bool = False) -> Tensor:
    """`x` [m, k] rounded to whole multiples of each group's largest / `levels`."""
    groups = x.view(x.shape[0], -1, GROUP)
    scale = groups.abs().amax(dim=-1, keepdim=True) / levels
    scale = scale.half().float() if half_scale else scale
    return torch.where(scale > 0, (groups / scale).round().clamp(-127, 127) * scale, 0).view_as(x)


class Oracle(FloatLinear):
    """What `Int8Linear` computes, in float64."""

    def __call__(
        self, x: Tensor, *, norm: RmsNorm | None = None, gated: bool = False, add_to: Tensor | None = None
    ) -> Tensor:
        changed = FloatLinear(torch.eye(self.weight.shape[1]))(x, norm=norm, gated=gated)
        exact = FloatLinear(self.weight.double(), None if self.bias is None else self.bias.double())
        y = exact(rounded(changed, 127.0).double())
        return (y if add_to is None else add_to + y).float()


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 12, 13, 31])
@pytest.mark.parametrize(("n", "k"), [(16, 32), (48, 96), (50, 64), (7, 160)])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_and_tails(kernels: Kernels, rows: int, n: int, k: int, bits: int) -> None:
    torch.manual_seed(rows * n + k)
    weight = on_levels(n, k) if bits == 4 else torch.randn(n, k)
    bias = torch.randn(n)
    layer = Int8Linear(weight, bias, kernels)
    assert layer.bits == bits
    oracle = Oracle(weight if bits == 4 else rounded(weight, 127.0, half_scale=True), bias)
    x = torch.randn(rows, k) * torch.logspace(-2, 2, rows)[:, None]
    torch.testing.assert_close(layer(x), oracle(x), rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("options", [{}, {"norm": True}, {"gated": True}, {"add": True}, {"norm": True, "add": True}])
def test_what_is_done_before_and_after(kernels: Kernels, options: dict[str, bool]) -> None:
    torch.manual_seed(1)
    rows, n, k = 9, 64, 64
    weight = on_levels(n, k)
    norm = RmsNorm(torch.rand(k) + 0.5, 1e-5) if options.get("norm") else None
    gated = options.get("gated", False)
    x, before = torch.randn(rows, 2 * k if gated else k), torch.randn(rows, n)
    results = []
    for layer in (Int8Linear(weight, kernels=kernels), Oracle(weight)):
        add_to = before.clone() if options.get("add") else None
        results.append(layer(x, norm=norm, gated=gated, add_to=add_to))
        assert add_to is None or not isinstance(layer, Int8Linear) or results[-1] is add_to
    # A rounding that falls the other way moves a sum by one step of an activation.
    torch.testing.assert_close(results[0], results[1], rtol=2e-3, atol=2e-3)
    assert (results[0] - results[1]).abs().mean() < 1e-4


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_is_the_same_bits_in_any_batch(kernels: Kernels, bits: int) -> None:
    torch.manual_seed(2)
    weight = on_levels(80, 544) if bits == 4 else torch.randn(80, 544)  # 17 groups: more than a vector has numbers
    layer, x = Int8Linear(weight, kernels=kernels), torch.randn(90, 544)
    together = layer(x)
    for start, stop in [(0, 1), (7, 9), (3, 10), (8, 40), (39, 40), (5, 80)]:
        assert torch.equal(layer(x[start:stop]), together[start:stop])


def test_instruction_sets_agree_to_the_bit() -> None:
    torch.manual_seed(3)
    fused = [name for name in VARIANTS if name != "portable"]  # which may lack fused multiply-add
    for weight in (on_levels(64, 128), torch.randn(64, 128)):
        x = torch.randn(17, 128)
        results = [Int8Linear(weight, kernels=Kernels(name))(x) for name in fused]
        assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("symmetric", [False, True])
def test_levels_of_gguf_are_kept_exactly(kernels: Kernels, symmetric: bool) -> None:
    """One activation of 127 and zeros reads a column of the weights; 127 is a code, so nothing is rounded."""
    torch.manual_seed(4)
    weight = on_levels(32, 64, symmetric=symmetric)
    assert pack(weight)[1] == 4
    read = Int8Linear(weight, kernels=kernels)(torch.eye(64) * 127.0) / 127.0
    torch.testing.assert_close(read.T, weight, rtol=1e-6, atol=1e-7)


def test_eight_bits_of_gguf_are_kept_exactly(kernels: Kernels) -> None:
    torch.manual_seed(5)
    codes = torch.randint(-127, 128, (32, 2, GROUP)).float()
    codes[..., 0] = 127
    weight = (codes * (torch.rand(32, 2, 1) * 0.01).half().float()).view(32, 64)
    read = Int8Linear(weight, kernels=kernels)(torch.eye(64) * 127.0) / 127.0
    torch.testing.assert_close(read.T, weight, rtol=1e-6, atol=1e-7)


def test_groups_without_spread(kernels: Kernels) -> None:
    constant = torch.full((16, 64), 0.5)
    torch.testing.assert_close(Int8Linear(constant, kernels=kernels)(torch.ones(2, 64)), torch.full((2, 16), 32.0))
    nothing = Int8Linear(torch.zeros(16, 64), kernels=kernels)
    assert nothing(torch.randn(3, 64)).eq(0).all()
    assert nothing(torch.zeros(3, 64)).eq(0).all()


def test_bfloat16_comes_back_as_bfloat16(kernels: Kernels) -> None:
    layer, x = Int8Linear(on_levels(16, 32), kernels=kernels), torch.randn(4, 32)
    out = layer(x.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, layer(x.bfloat16().float()).bfloat16())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_does_not_become_one(kernels: Kernels, bits: int, bad: float) -> None:
    torch.manual_seed(6)
    layer = Int8Linear(on_levels(32, 64) if bits == 4 else torch.randn(32, 64), kernels=kernels)
    x = torch.randn(20, 64)
    expected = layer(x)
    x[3, 40] = bad
    out = layer(x)
    assert out[3].isnan().all()
    assert torch.equal(out[[0, 1, 2, *range(4, 20)]], expected[[0, 1, 2, *range(4, 20)]])
