"""Attention over lane pages in plain torch: runs anywhere, and is what every other backend is held to."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from paged_kv.backend import AttentionBackend
from paged_kv.batch import PagedBatch
from paged_kv.fresh import FreshRows
from paged_kv.pool import KVPool

_QUERY_TILE = 128  # queries of one prompt chunk at a time: bounds the weights held at once
_GATHER_ROWS = 4096  # rows of decoding sequences gathered at once: fewer calls, in blocks that the cache still holds


class ReferenceBackend(AttentionBackend):
    """Gathers the pages of a few sequences at a time into a padded block, then takes an ordinary masked softmax.

    Owns the two blocks that pages are gathered into; they are reused, because fresh memory costs more than the copy.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, Tensor] = {}

    def unavailable_reason(self) -> str | None:
        """See `AttentionBackend.unavailable_reason`."""
        return None

    def __str__(self) -> str:
        return "plain torch"

    def attend(self, pool: KVPool, layer: int, queries: Tensor, batch: PagedBatch) -> Tensor:
        """See `AttentionBackend.attend`."""
        output = torch.empty_like(queries, dtype=torch.float32)
        lanes = slice(layer * batch.kv_heads, (layer + 1) * batch.kv_heads)
        if pool.basis is not None:
            queries = pool.basis.turn_queries(queries, lanes.start, batch.kv_heads)
        for members in _groups(batch, batch.kept[:, lanes].amax(dim=1).tolist()):
            tokens = slice(batch.starts[members.start], batch.starts[members.stop])
            group = queries[tokens].float().view(len(members), -1, *queries.shape[1:])
            output[tokens] = self._attend_group(pool, lanes, group, batch, members).flatten(0, 1)
        return output if pool.basis is None else output @ pool.basis.outputs

    def _attend_group(self, pool: KVPool, lanes: slice, queries: Tensor, batch: PagedBatch, members: range) -> Tensor:
        """Attention of `queries` [S, n, heads, head_dim], n new tokens of each member; same shape back."""
        sequences = slice(members.start, members.stop)
        kept = batch.kept[sequences, lanes]  # [S, H]
        most = int(kept.max())
        columns = torch.arange(-(-most // pool.page_size), device=kept.device)
        table = batch.tables[batch.slots[sequences], lanes, : columns.numel()]  # [S, H, P]
        table = torch.where(columns * pool.page_size < kept.unsqueeze(-1), table, 0)
        rows = torch.arange(most, device=table.device)
        keys = self._gather("keys", pool, pool.keys, table)[:, :, :most]  # [S, H, R, D]
        values = self._gather("values", pool, pool.values, table)[:, :, :most]
        stale = rows >= kept.unsqueeze(-1)
        is_ragged = bool(stale.any())
        if is_ragged:  # what nobody wrote may be NaN, which no weight of 0 would hide
            keys[stale] = 0
            values[stale] = 0
        count = queries.shape[1]
        new_keys, new_values = keys, values
        if pool.fresh is not None:
            new_keys, new_values = _with_fresh(pool.fresh, batch, members, kept, keys, values)
        grouped = queries.view(*queries.shape[:2], kept.shape[1], -1, pool.head_dim).permute(0, 2, 3, 1, 4)
        outputs = []
        for first in range(0, count, _QUERY_TILE):
            tile = grouped[:, :, :, first : first + _QUERY_TILE]  # [S, H, g, q, D]
            offsets = torch.arange(first, first + tile.shape[3], device=table.device)
            visible = kept.unsqueeze(-1) - count + offsets + 1  # [S, H, q]
            hidden = rows >= visible.unsqueeze(-1) if is_ragged or count > 1 else None
            near = None
            if pool.fresh is not None:
                own = _own_rows(batch, members, offsets, pool.fresh.rows)
                near = (rows >= (visible - own).unsqueeze(-1)).unsqueeze(2)  # [S, H, 1, q, R]
            weights = _weights(tile, keys, hidden, new_keys, near)
            outputs.append(_weighted(weights, values, new_values, near).view(tile.shape))
            _observe(pool, table, weights, visible, batch, members, offsets)
        return torch.cat(outputs, dim=3).permute(0, 3, 1, 2, 4).flatten(2, 3)

    def _gather(self, name: str, pool: KVPool, plane: Tensor, table: Tensor) -> Tensor:
        """The rows of the pages in `table` [S, H, P] as float32 [S, H, P * page_size, D], valid until the next call."""
        block = self._blocks.get(name)
        if block is None or block.shape[0] < table.numel() or block.dtype != plane.dtype:
            block = self._blocks[name] = plane.new_empty((table.numel(), *plane.shape[1:]))
        gathered = torch.index_select(plane, 0, table.flatten(), out=block[: table.numel()])
        return pool.format.decode(gathered).view(*table.shape[:2], -1, pool.head_dim)


def _groups(batch: PagedBatch, most_rows: list[int]) -> Iterator[range]:
    """Ranges of neighbouring sequences: those with one new token together, as many as the gather limit allows."""
    start = 0
    while start < batch.num_sequences:
        stop, rows = start + 1, most_rows[start]
        while stop < batch.num_sequences and batch.num_new(start) == 1 == batch.num_new(stop):
            rows = max(rows, most_rows[stop])
            if rows * (stop + 1 - start) > _GATHER_ROWS:
                break
            stop += 1
        yield range(start, stop)
        start = stop


def _with_fresh(
    fresh: FreshRows, batch: PagedBatch, members: range, kept: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """Copies of `keys` and `values` [S, H, R, D] in which the newest rows of each lane are the fresh ones."""
    keys, values = keys.clone(), values.clone()
    for i, member in enumerate(members):
        newest = fresh.of(member, batch)
        for head, rows in enumerate(kept[i].tolist()):
            for all_rows, new in zip((keys, values), newest, strict=True):
                all_rows[i, head, rows - new.shape[1] : rows] = new[head]
    return keys, values


def _own_rows(batch: PagedBatch, members: range, offsets: Tensor, block: int) -> Tensor:
    """How many rows of its own block each of a tile's queries sees, [S, 1, q]."""
    first = torch.tensor([batch.starts[member] for member in members], device=offsets.device)
    return (batch.positions[first.unsqueeze(-1) + offsets] % block + 1).unsqueeze(1)


def _weights(queries: Tensor, keys: Tensor, hidden: Tensor | None, new_keys: Tensor, near: Tensor | None) -> Tensor:
    """Softmax weights [S, H, g, q, R] of `queries` [S, H, g, q, D] over `keys` [S, H, R, D].

    `hidden` bool [S, H, q, R] marks the rows that a query does not see; None if it sees all. Where `near`
    [S, H, 1, q, R] says so, `new_keys` take their place.
    """
    scaled = queries.flatten(2, 3) * queries.shape[-1] ** -0.5
    scores: Tensor = (scaled @ keys.mT).view(*queries.shape[:4], -1)
    if near is not None:
        scores = torch.where(near, (scaled @ new_keys.mT).view(scores.shape), scores)
    if hidden is not None:
        barrier = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, float("-inf"))
        scores += barrier.unsqueeze(2)
    return scores.softmax(dim=-1)


def _weighted(weights: Tensor, values: Tensor, new_values: Tensor, near: Tensor | None) -> Tensor:
    """Values [S, H, R, D] by their weights, [S, H, g * q, D]; where `near` says so, `new_values` take their place."""
    if near is None:
        return weights.flatten(2, 3) @ values
    far = weights.masked_fill(near, 0).flatten(2, 3) @ values
    summed: Tensor = far + weights.masked_fill(~near, 0).flatten(2, 3) @ new_values
    return summed


def _observe(
    pool: KVPool, table: Tensor, weights: Tensor, visible: Tensor, batch: PagedBatch, members: range, offsets: Tensor
) -> None:
    """Let the pool's state note the weights that the observed members gave."""
    watched = [i for i, member in enumerate(members) if batch.observed[member]]
    if pool.observation is None or not watched:
        return
    first = torch.tensor([batch.starts[members[i]] for i in watched], device=table.device)
    positions = batch.positions[first.unsqueeze(-1) + offsets].unsqueeze(1).expand(-1, table.shape[1], -1)
    rows = torch.arange(weights.shape[-1], device=table.device)
    slots = table[watched][:, :, rows // pool.page_size] * pool.page_size + rows % pool.page_size  # [W, H, R]
    measured = pool.observation.measured(weights[watched].mean(dim=2), visible[watched].unsqueeze(-1))
    pool.observation.note(pool.state.flatten(0, 1), slots, measured, positions)


BACKEND = ReferenceBackend
