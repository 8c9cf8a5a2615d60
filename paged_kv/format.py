"""How a row's K or V vector is stored in a page."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from paged_kv.plugins import load

_HALF_MAX = torch.finfo(torch.float16).max
_LEVELS = 255.0
_STEP = 32  # numbers: a multiple of what any kernel takes at once


class PageFormat(ABC):
    """Stateless. All that a vector needs, scales included, lies in its own `width` elements, so rows move as bytes.

    `head_dim` must be a multiple of `head_dim_step`. `turns_rows`: rows are stored in a `Basis`. `fresh_rows`: as many
    of the newest are worth holding in 8 bits as well, see `FreshRows`.
    """

    dtype: torch.dtype
    head_dim_step = 1
    turns_rows = False
    fresh_rows = 0

    @abstractmethod
    def width(self, head_dim: int) -> int:
        """Elements of `dtype` that one vector of `head_dim` numbers takes."""

    @abstractmethod
    def encode(self, vectors: Tensor) -> Tensor:
        """Float vectors [..., head_dim] to stored ones [..., width]."""

    @abstractmethod
    def decode(self, stored: Tensor) -> Tensor:
        """Stored vectors [..., width] to float32 [..., head_dim]."""

    def encode_uneven(self, vectors: Tensor) -> Tensor:
        """As `encode`, for vectors whose first half counts for more than their second."""
        return self.encode(vectors)

    def bytes_per_row(self, head_dim: int) -> int:
        """Bytes of one row's K and V."""
        return 2 * self.width(head_dim) * self.dtype.itemsize


class PlainFormat(PageFormat):
    """Numbers as they are, in `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def width(self, head_dim: int) -> int:
        """See `PageFormat.width`."""
        return head_dim

    def encode(self, vectors: Tensor) -> Tensor:
        """See `PageFormat.encode`."""
        return vectors.to(self.dtype)

    def decode(self, stored: Tensor) -> Tensor:
        """See `PageFormat.decode`."""
        return stored.float()


class QuantizedFormat(PageFormat):
    """Codes of 8 bits, then scale and zero of the vector in float16: number = code * scale + zero."""

    dtype = torch.uint8
    head_dim_step = _STEP

    def width(self, head_dim: int) -> int:
        """See `PageFormat.width`."""
        return head_dim + 4

    def encode(self, vectors: Tensor) -> Tensor:
        """See `PageFormat.encode`."""
        vectors = vectors.float()
        zero = _half(vectors.amin(dim=-1, keepdim=True))
        scale = _half((vectors.amax(dim=-1, keepdim=True) - zero.float()) / _LEVELS)
        step = torch.where(scale > 0, scale, 1).float()
        codes = ((vectors - zero.float()) / step).round().clamp(0, _LEVELS).masked_fill(scale == 0, 0).to(torch.uint8)
        return torch.cat((codes, scale.view(torch.uint8), zero.view(torch.uint8)), dim=-1)

    def decode(self, stored: Tensor) -> Tensor:
        """See `PageFormat.decode`."""
        scale = stored[..., -4:-2].contiguous().view(torch.float16).float()
        zero = stored[..., -2:].contiguous().view(torch.float16).float()
        return stored[..., :-4] * scale + zero


def _half(numbers: Tensor) -> Tensor:
    return numbers.clamp(-_HALF_MAX, _HALF_MAX).half()


def load_format(name: str) -> PageFormat:
    """The format called `name` (a file in `paged_kv/formats`). Raises ValueError if there is none."""
    page_format: PageFormat = load("paged_kv.formats", name, "FORMAT")
    return page_format
