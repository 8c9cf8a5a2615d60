"""The directions that a row is rounded along: a vector is stored in a basis in which rounding it costs least."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_SEED = 2023  # stored rows mean nothing under other signs


@dataclass(frozen=True, slots=True, eq=False)
class KeyStatistics:
    """What keys and queries of a model look like after RoPE, each float32 [layers * kv_heads, head_dim].

    `mean`, `variance` of keys, and the mean square of the queries that meet them.
    """

    mean: Tensor
    variance: Tensor
    query_square: Tensor


class Basis:
    """Matrices that vectors are multiplied by from the right. Owned by the pool; nobody changes it.

    `keys`, `queries` float32 [lanes, head_dim, head_dim], or [1, ...] for all lanes alike: products of a key and a
    query stay what they were. `values` float32 [head_dim, head_dim]; `outputs` undoes it. Within each half a
    Walsh-Hadamard rotation with random signs spreads large numbers over all (QuaRot, arXiv 2404.00456).

    With `statistics` keys come out of it balanced: numbers are as large as the queries' that meet them. Those that
    count most stand in the first half (`is_uneven`: it deserves more bits), and the mean of keys lies along ones,
    where the zero of a rounded row takes it in.
    """

    def __init__(self, head_dim: int, statistics: KeyStatistics | None = None) -> None:
        self.values = torch.block_diag(*[_rotation(head_dim // 2)] * 2)
        self.outputs = self.values.T.contiguous()
        self.is_uneven = statistics is not None
        if statistics is None:
            self.keys = self.queries = self.values.unsqueeze(0)
        else:
            self.keys, self.queries = _balanced(statistics, self.values)

    def turn_keys(self, keys: Tensor, first_lane: int) -> Tensor:
        """Keys [n, lanes, head_dim] of neighbouring lanes, as they are stored."""
        return _turn(keys, self.keys, first_lane)

    def turn_queries(self, queries: Tensor, first_lane: int, lanes: int) -> Tensor:
        """Queries [n, heads, head_dim] that look at `lanes` lanes; heads of a lane are neighbours."""
        grouped = queries.unflatten(1, (lanes, -1)).transpose(1, 2).flatten(0, 1)
        turned: Tensor = _turn(grouped, self.queries, first_lane).unflatten(0, (queries.shape[0], -1))
        return turned.transpose(1, 2).flatten(1, 2)


def _turn(vectors: Tensor, matrices: Tensor, first_lane: int) -> Tensor:
    own = matrices if matrices.shape[0] == 1 else matrices[first_lane : first_lane + vectors.shape[1]]
    turned: Tensor = vectors.float().transpose(0, 1) @ own
    return turned.transpose(0, 1)


def _balanced(statistics: KeyStatistics, rotation: Tensor) -> tuple[Tensor, Tensor]:
    """Keys' and queries' matrices, computed in float64, so that their last bits do not depend on who computes."""
    mean = statistics.mean.double()
    variance, square = (each.double().clamp(min=1e-6) for each in (statistics.variance, statistics.query_square))
    scale = (square / variance) ** 0.25
    order = (square * variance).argsort(dim=1, descending=True, stable=True)
    places = torch.zeros(*order.shape, order.shape[1], dtype=torch.float64)
    places.scatter_(1, order.unsqueeze(1), 1.0)  # [lanes, from, to]
    turn = places @ rotation.double()
    half = rotation.shape[0] // 2
    scaled = ((mean * scale).unsqueeze(1) @ turn).squeeze(1)
    mirrors = [_mirror(part) for part in scaled.split(half, dim=1)]
    turn[..., :half] = turn[..., :half] @ mirrors[0]
    turn[..., half:] = turn[..., half:] @ mirrors[1]
    return (scale.unsqueeze(-1) * turn).float(), (turn / scale.unsqueeze(-1)).float()


def _mirror(means: Tensor) -> Tensor:
    """Householder reflections [lanes, n, n] that lay `means` [lanes, n] along ones."""
    length, count = means.norm(dim=1, keepdim=True), means.shape[1]
    away = means / length.clamp(min=1e-12) - count**-0.5
    reflected = 2 * away.unsqueeze(2) * away.unsqueeze(1) / away.square().sum(dim=1).clamp(min=1e-12).view(-1, 1, 1)
    return torch.eye(count, dtype=means.dtype) - torch.where(length.unsqueeze(2) > 0, reflected, 0)


def _rotation(size: int) -> Tensor:
    """Walsh-Hadamard matrices with random signs along the diagonal, as large a power of two as `size` allows."""
    generator = torch.Generator().manual_seed(_SEED)
    signs = torch.randint(0, 2, (size,), generator=generator).float() * 2 - 1
    block = size & -size
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < block:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    rotation: Tensor = torch.block_diag(*[matrix * block**-0.5] * (size // block))
    return signs.unsqueeze(1) * rotation
