"""Which rows of a mini-batch count where: for every statistic the weight of every row.

The mean of a statistic is linear in the values of rows, and so are the constraints: c = map @ values - b. Balanced
batches have the same groups in the same places again and again, so the last layout is kept while they do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound.constraints.limits import Limit
from fairbound.constraints.statistics import Value
from fairbound.integrations.torch.batch import MiniBatch


class Block(NamedTuple):
    """The limits that average the same value; the loss's block has the objective before them."""

    value: Value | None
    limits: tuple[Limit, ...]

    @property
    def objective_in_table(self) -> bool:
        """Whether the first limit's table has a column of ones for the objective: one operation less."""
        return self.value is None and bool(self.limits) and self.limits[0].by_table


class Map(NamedTuple):
    """f = objective @ values and c = rows_of_c @ values + minus_bound, for the values of rows."""

    objective: Tensor  # (B,)
    rows_of_c: Tensor  # (m, B)
    constraints: Tensor  # (B, m) the same transposed
    minus_bound: Tensor  # (m,)


class Layout(NamedTuple):
    """The rows of one mini-batch by statistic."""

    masks: list[Tensor]  # (B, statistics) for each block: what a row counts
    counts: Tensor  # (statistics,) over all blocks
    map: Map | None  # from the values to [f, c], where there is one block and nothing else


class Last(NamedTuple):
    """The layout of the last mini-batch and what decided it."""

    kept: list[Tensor | None]  # copies: columns of groups, rows of the objective, weights
    dtype: torch.dtype  # of the losses
    shape: torch.Size
    layout: Layout


class Layouts:
    """Layouts of mini-batches; the last one is kept."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self._tables: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}
        self._last: Last | None = None
        self._columns = list({limit.by: 0 for block in blocks for limit in block.limits if limit.needs_groups})
        self._reads_labels = any(limit.needs_labels for block in blocks for limit in block.limits)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_tables": {}}  # they are found by what is elsewhere in another process

    def of(self, rows: MiniBatch, work: torch.dtype, matrices: tuple[Tensor, Tensor] | None) -> Layout:
        """The layout of a mini-batch; A (1+m, 1+q) and -b (1+m,) make the map."""
        layout = self._made(rows, work, matrices)
        if rows.losses.is_cpu and not self._reads_labels:  # a comparison waits for a GPU; labels always differ
            kept = [None if tensor is None else tensor.clone() for tensor in self._deciding(rows)]
            self._last = Last(kept, rows.losses.dtype, rows.losses.shape, layout)
        return layout

    def again(self, rows: MiniBatch) -> Layout | None:
        """The last layout, where this mini-batch has the same; no more than a look, since it is made in every step."""
        last, losses = self._last, rows.losses
        if last is None or losses.dtype is not last.dtype or losses.shape != last.shape or not losses.is_cpu:
            return None
        for old, new in zip(last.kept, self._deciding(rows), strict=True):
            # Numbers, not identity or version: memory shared with numpy changes without either.
            if old is not new and (old is None or new is None or not torch.equal(old, new)):
                return None
        return last.layout

    def _deciding(self, rows: MiniBatch) -> tuple[Tensor | None, ...]:
        if len(self._columns) == 1 and isinstance(rows.groups, Tensor):
            return rows.groups, rows.objective, rows.weight
        return *(rows.column(by) for by in self._columns), rows.objective, rows.weight

    def _made(self, rows: MiniBatch, work: torch.dtype, matrices: tuple[Tensor, Tensor] | None) -> Layout:
        masks = [self._mask(block, rows, work) for block in self.blocks]
        counts = masks[0].sum(0) if len(masks) == 1 else torch.cat([mask.sum(0) for mask in masks])
        if matrices is None:
            return Layout(masks, counts, None)
        whole = torch.mm(matrices[0] / counts, masks[0].t())
        return Layout(masks, counts, Map(whole[0], whole[1:], whole[1:].t(), matrices[1][1:]))

    def _mask(self, block: Block, rows: MiniBatch, work: torch.dtype) -> Tensor:
        """(B, statistics)."""
        parts = [self._members(block, limit, rows, work) for limit in block.limits]
        if block.value is None and not block.objective_in_table:
            parts.insert(0, torch.ones(rows.losses.shape[0], 1, dtype=work, device=rows.losses.device))
        mask = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        if block.value is None and rows.objective is not None:
            mask[:, 0] = rows.objective
        return mask if rows.weight is None else mask * rows.weight[:, None].to(work)

    def _members(self, block: Block, limit: Limit, rows: MiniBatch, work: torch.dtype) -> Tensor:
        """(B, K) 1 where a row belongs to a cell, else 0."""
        device = rows.losses.device
        if limit.groups is not None and all(cell.group is not None for cell in limit.who):
            first = block.objective_in_table and limit is block.limits[0]
            places = rows.column(limit.by).long().clamp(-2, limit.groups) + 2
            inside = self._table(limit, first, work, device).index_select(0, places)
        elif limit.needs_groups:
            codes = torch.tensor([-2 if cell.group is None else cell.group for cell in limit.who], device=device)
            inside = ((rows.column(limit.by)[:, None] == codes) | (codes == -2)).to(work)
        else:
            inside = torch.ones(rows.losses.shape[0], len(limit.who), dtype=work, device=device)
        if limit.needs_labels:
            labels = rows.needed("labels", f"the limit {limit.names[0]!r}").reshape(-1, 1)
            wanted = [torch.nan if cell.label is None else cell.label for cell in limit.who]
            chosen = torch.tensor(wanted, dtype=torch.float64, device=device)
            inside = inside * ((labels == chosen) | chosen.isnan())
        return inside

    def _table(self, limit: Limit, with_objective: bool, work: torch.dtype, device: torch.device) -> Tensor:
        """A row of NaN for numbers below, one of zeros for -1, one for every group, one of NaN for numbers above."""
        key = (id(limit), work, device)
        if key not in self._tables:
            assert limit.groups is not None
            codes = torch.tensor([cell.group for cell in limit.who])
            table = (torch.arange(-2, limit.groups + 1)[:, None] == codes).to(work)
            table[[0, -1]] = torch.nan
            if with_objective:
                table = torch.cat([torch.ones(len(table), 1, dtype=work), table], 1)
            self._tables[key] = table.to(device)
        return self._tables[key]
