"""One step's view of the tables: what a kernel needs to find rows, rebuilt every step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paged_kv.table import TableUpdate


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """New tokens of S sequences laid end to end, T in all. Sequence s owns tokens `starts[s] : starts[s + 1]`.

    `positions` int64 [T]; `tables` int64 [slots, lanes, columns] are the mirror's own, so a batch is good for one step;
    `slots` int64 [S] says which of them are meant; `kept` int64 [S, lanes] counts the new rows too; entries of a table
    behind its rows are meaningless. `new_slots` int64 [T, lanes] is where each token's row goes. `observed[s]`:
    whether the weights that the tokens of s give are to be noted down. Lane of layer l, KV head h: `l * kv_heads + h`.
    """

    starts: tuple[int, ...]
    positions: Tensor
    tables: Tensor
    slots: Tensor
    kept: Tensor
    new_slots: Tensor
    observed: tuple[bool, ...]
    kv_heads: int

    @property
    def num_sequences(self) -> int:
        """Sequences in the batch."""
        return len(self.starts) - 1

    def num_new(self, sequence: int) -> int:
        """New tokens of one sequence."""
        return self.starts[sequence + 1] - self.starts[sequence]


class TableMirror:
    """The runner's copy of the page tables, on the device of the pool; told of changes only, never sent whole.

    Owned by the runner. `kept` and pages of a slot follow the scheduler's `PageTable` exactly.
    """

    def __init__(
        self, num_slots: int, num_layers: int, kv_heads: int, page_size: int, device: torch.device | str = "cpu"
    ) -> None:
        self.page_size = page_size
        self.kv_heads = kv_heads
        num_lanes = num_layers * kv_heads
        self._tables = torch.zeros(num_slots, num_lanes, 8, dtype=torch.int64, device=device)
        self._kept = torch.zeros(num_slots, num_lanes, dtype=torch.int64, device=device)

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._kept[slot] = 0

    def extend(self, slot: int, update: TableUpdate, new_rows: int) -> None:
        """Enter new pages of `slot` and count `new_rows` more rows in each of its lanes."""
        if update.pages.size:
            self._reserve(int(update.columns.max()) + 1)
            lanes, columns, pages = (
                torch.from_numpy(part).to(self._tables) for part in (update.lanes, update.columns, update.pages)
            )
            self._tables[slot, lanes, columns] = pages
        self._kept[slot] += new_rows

    def truncate(self, slot: int, kept: Tensor) -> None:
        """Keep the first `kept` [lanes] rows of each lane of `slot`."""
        self._kept[slot] = kept

    def replace(self, slot: int, kept: Tensor, fresh: Tensor) -> None:
        """Let `slot` have `kept` [lanes] rows per lane in `fresh` pages, lane after lane, in place of those it had."""
        counts = -(-kept // self.page_size)
        lanes = torch.repeat_interleave(counts)
        columns = torch.arange(lanes.numel(), device=lanes.device) - (counts.cumsum(0) - counts)[lanes]
        self._tables[slot, lanes, columns] = fresh[: lanes.numel()]
        self._kept[slot] = kept

    def kept(self, slot: int) -> Tensor:
        """Rows per lane of `slot`, int64 [lanes]."""
        return self._kept[slot].clone()

    def slots_of_rows(self, slot: int) -> Tensor:
        """Where the rows of `slot` lie: int64 [lanes, most rows]; entries from `kept` on are meaningless."""
        offsets = torch.arange(self.page_size, device=self._kept.device)
        slots = self.pages(slot).unsqueeze(-1) * self.page_size + offsets
        return slots.flatten(1)[:, : int(self._kept[slot].max())]

    def pages(self, slot: int) -> Tensor:
        """The pages of `slot`: int64 [lanes, most pages]; entries behind those that its rows need are meaningless."""
        return self._tables[slot, :, : -(-int(self._kept[slot].max()) // self.page_size)]

    def batch(
        self, slots: list[int], counts: list[int], positions: list[int], observed: tuple[bool, ...]
    ) -> PagedBatch:
        """The view for a step in which slot `slots[i]` has `counts[i]` new tokens from position `positions[i]` on.

        All of `extend` must have been called before.
        """
        device = self._kept.device
        tokens = torch.tensor(counts, device=device)
        index = torch.tensor(slots, device=device)
        kept = self._kept[index]
        ends = tokens.cumsum(0)
        starts = (0, *ends.tolist())
        owner = torch.repeat_interleave(torch.arange(len(slots), device=device), tokens)
        offsets = torch.arange(starts[-1], device=device) - (ends - tokens)[owner]  # of each token within its sequence
        rows = (kept - tokens.unsqueeze(1))[owner] + offsets.unsqueeze(1)  # [T, lanes]
        lanes = torch.arange(kept.shape[1], device=device)
        pages = self._tables[index[owner].unsqueeze(1), lanes, rows // self.page_size]
        return PagedBatch(
            starts=starts,
            positions=torch.tensor(positions, device=device)[owner] + offsets,
            tables=self._tables,
            slots=index,
            kept=kept,
            new_slots=pages * self.page_size + rows % self.page_size,
            observed=observed,
            kv_heads=self.kv_heads,
        )

    def _reserve(self, columns: int) -> None:
        capacity = self._tables.shape[2]
        if columns > capacity:
            extra = max(columns, 2 * capacity) - capacity
            self._tables = torch.nn.functional.pad(self._tables, (0, extra))
