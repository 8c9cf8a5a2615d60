"""Linear layers, and what decoders do right before and after them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from csrc.library import Kernels, LinearCall, address, pack

GROUP = 32  # inputs that share a scale in `Int8Linear`


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Root mean square norm over the last dimension (Zhang and Sennrich, arXiv 1910.07467)."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """[..., n] to the same shape."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Linear(ABC):
    """y = f(x) W^T + b, with W [out, in]; f is nothing, an RMS norm, or silu(gate) * up of x = gate, up."""

    @abstractmethod
    def __call__(
        self, x: Tensor, *, norm: RmsNorm | None = None, gated: bool = False, add_to: Tensor | None = None
    ) -> Tensor:
        """[T, in], or [T, 2 * in] if `gated`, to [T, out]; with `add_to` [T, out], y is added to it, in place."""


@dataclass(frozen=True, slots=True)
class FloatLinear(Linear):
    """In the dtype of its weights, by torch."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(
        self, x: Tensor, *, norm: RmsNorm | None = None, gated: bool = False, add_to: Tensor | None = None
    ) -> Tensor:
        """See `Linear`."""
        if norm is not None:
            x = norm(x)
        if gated:
            gate, up = x.chunk(2, dim=-1)
            x = functional.silu(gate) * up
        y = functional.linear(x, self.weight, self.bias)
        return y if add_to is None else add_to.add_(y)


class Int8Linear(Linear):
    """Weights in at most 8 bits and activations in 8, each with a scale for every 32 numbers along `in`, by C++.

    A row's result is the same bits alone or in any batch. Weights on 16 levels per group, as a GGUF file in Q4 has
    them, are kept exactly. Owns the packed weights. `in` must be a multiple of 32. Raises KernelsMissing.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, kernels: Kernels | None = None) -> None:
        self._kernels = kernels or Kernels()
        self._out = weight.shape[0]
        self._packed, self.bits = pack(weight.float().contiguous())
        self._bias = None if bias is None else bias.float().contiguous()
        self._call = LinearCall(
            weights=address(self._packed),
            bias=None if self._bias is None else address(self._bias),
            n=self._out,
            k=weight.shape[1],
            bits=self.bits,
        )

    def __call__(
        self, x: Tensor, *, norm: RmsNorm | None = None, gated: bool = False, add_to: Tensor | None = None
    ) -> Tensor:
        """See `Linear`."""
        call, dtype = self._call, x.dtype
        call.rows, call.gated, call.norm = x.shape[0], gated, None
        if norm is not None:
            call.norm, call.eps = address(norm.weight), norm.eps
        if dtype != torch.float32:
            y = self._run(x.float(), torch.empty(x.shape[0], self._out), add=False).to(dtype)
            return y if add_to is None else add_to.add_(y)
        return self._run(x, torch.empty(x.shape[0], self._out) if add_to is None else add_to, add=add_to is not None)

    def _run(self, x: Tensor, out: Tensor, *, add: bool) -> Tensor:
        self._call.accumulate = add
        self._kernels.linear(self._call, x if x.is_contiguous() else x.contiguous(), out)
        return out
