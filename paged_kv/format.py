"""How a row's K or V vector is stored in a page."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from paged_kv.plugins import load


class PageFormat(ABC):
    """Stateless. All that a vector needs, scales included, lies in its own `width` elements, so rows move as bytes."""

    dtype: torch.dtype

    @abstractmethod
    def width(self, head_dim: int) -> int:
        """Elements of `dtype` that one vector of `head_dim` numbers takes."""

    @abstractmethod
    def encode(self, vectors: Tensor) -> Tensor:
        """Float vectors [..., head_dim] to stored ones [..., width]."""

    @abstractmethod
    def decode(self, stored: Tensor) -> Tensor:
        """Stored vectors [..., width] to float32 [..., head_dim]."""

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


def load_format(name: str) -> PageFormat:
    """The format called `name` (a file in `paged_kv/formats`). Raises ValueError if there is none."""
    page_format: PageFormat = load("paged_kv.formats", name, "FORMAT")
    return page_format
