"""Rows moved together: what compaction costs."""

from __future__ import annotations

from functools import cache

from torch import Tensor

from csrc.library import KernelsMissing, available_variants, move_rows


def move(plane: Tensor, sources: Tensor, targets: Tensor, counts: Tensor) -> None:
    """Copy rows of `plane` [rows, width] byte for byte from `sources` to `targets`, int64 [n], lane after lane.

    `counts` int64 [lanes], how many of the n are each lane's. Within a lane rows move to where none is that is still to
    be moved: those of one come first that a later one replaces. No lane touches the rows of another.
    """
    if plane.device.type == "cpu" and _has_kernels():
        move_rows(plane, sources, targets, counts)
    else:
        plain_move(plane, sources, targets, counts)


def plain_move(plane: Tensor, sources: Tensor, targets: Tensor, counts: Tensor) -> None:  # noqa: ARG001
    """The same in plain torch, which reads all rows before it writes the first."""
    plane.index_copy_(0, targets, plane.index_select(0, sources))


@cache
def _has_kernels() -> bool:
    try:
        available_variants()
    except KernelsMissing:
        return False
    return True
