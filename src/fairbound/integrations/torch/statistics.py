"""A mini-batch's objective and constraints as sums and counts, and the weights of its rows in a gradient.

Everything that a limit needs is a mean over some rows of one number per row (the loss, a soft rate), so a mini-batch is
read as sums and counts: they add up over processes and over accumulated mini-batches, where means of means would
not. A combination of objective and constraints then is a weighted sum over rows: one backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.constraints.limits import AnyLimit, FunctionLimit, Limit
from fairbound.constraints.statistics import Value
from fairbound.integrations.torch.batch import MiniBatch
from fairbound.integrations.torch.layout import Block, Layout, Layouts

MOST_IN_A_MAP = 1 << 20  # numbers: constraints x rows, beyond which the map from rows to constraints is not made


class SumsCounts(NamedTuple):
    """Sums and counts, (1+q,): the objective's first, then each statistic's."""

    sums: Tensor
    counts: Tensor

    def plus(self, other: SumsCounts) -> SumsCounts:
        return SumsCounts(self.sums + other.sums, self.counts + other.counts)


class BatchStatistics:
    """One mini-batch: its values with their graphs, and where its rows count."""

    __slots__ = ("functions", "layout", "values")

    def __init__(self, values: list[Tensor], functions: Tensor | None, layout: Layout) -> None:
        self.values = values  # (B,) each: the loss, then every other value
        self.functions = functions  # (q,) values of the user's functions
        self.layout = layout

    @property
    def tensors(self) -> list[Tensor]:
        """What is differentiated."""
        return self.values if self.functions is None else [*self.values, self.functions]

    def totals(self) -> SumsCounts:
        work = self.layout.counts.dtype
        pairs = zip(self.layout.masks, self.values, strict=True)
        sums = [torch.mv(mask.t(), plain(value, work)) for mask, value in pairs]
        if self.functions is None:
            return SumsCounts(sums[0] if len(sums) == 1 else torch.cat(sums), self.layout.counts)
        own = plain(self.functions, work)
        return SumsCounts(torch.cat([*sums, own]), torch.cat([self.layout.counts, torch.ones_like(own)]))

    def spread(self, weights: Tensor) -> list[Tensor]:
        """The weight of every entry of `tensors`, from a weight (1+q,) on every sum."""
        found, start = [], 0
        for values, mask in zip(self.values, self.layout.masks, strict=True):
            size = mask.shape[1]
            found.append(torch.mv(mask, weights[start : start + size]).to(values.dtype))
            start += size
        return found if self.functions is None else [*found, weights[start:].to(self.functions.dtype)]

    def halves(self) -> tuple[BatchStatistics, BatchStatistics]:
        """The rows of every statistic, dealt in turn to two mini-batches."""
        turns = [(mask != 0).to(mask.dtype).cumsum(0) % 2 for mask in self.layout.masks]
        odd = [mask * turn for mask, turn in zip(self.layout.masks, turns, strict=True)]
        even = [mask * (1 - turn) for mask, turn in zip(self.layout.masks, turns, strict=True)]
        return self._with(odd), self._with(even)

    def _with(self, masks: list[Tensor]) -> BatchStatistics:
        return BatchStatistics(self.values, self.functions, Layout(masks, torch.cat([m.sum(0) for m in masks]), None))


def plain(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Without a graph, in a precision."""
    values = values.detach()
    return values if values.dtype == dtype else values.to(dtype)


class Matrices(NamedTuple):
    """[f, c] = whole @ means + minus_bound, in one precision and on one device."""

    whole: Tensor  # (1+m, 1+q)
    minus_bound: Tensor  # (1+m,)
    objective: Tensor  # (1+q,) the row of f
    constraints: Tensor  # (1+q, m) the rows of c, transposed


class ConstraintMatrix:
    """Limits laid out: [f, c] = A @ means - b."""

    def __init__(self, limits: Sequence[AnyLimit]) -> None:
        kinds: dict[Value | None, list[Limit]] = {None: []}
        for limit in limits:
            if isinstance(limit, Limit):
                kinds.setdefault(limit.value, []).append(limit)
        self.blocks = [Block(value, tuple(own)) for value, own in kinds.items()]
        self.functions = [limit for limit in limits if isinstance(limit, FunctionLimit)]
        self.m = sum(len(limit.names) for limit in limits)
        self.loss_alone = len(self.blocks) == 1 and not self.functions  # all limits are on the loss
        self._matrix, self._minus_bound = self._laid_out(limits)
        self._cache: dict[tuple[torch.dtype, torch.device], Matrices] = {}
        self._layouts = Layouts(self.blocks)

    def _laid_out(self, limits: Sequence[AnyLimit]) -> tuple[Tensor, Tensor]:
        """A (1+m, 1+q) and -b (1+m,); columns in the order of blocks, rows in the order of the limits."""
        place: dict[int, int] = {}
        column = 1
        for cells in [own for block in self.blocks for own in block.limits]:
            place[id(cells)], column = column, column + len(cells.who)
        for function in self.functions:
            place[id(function)], column = column, column + len(function.names)
        matrix = torch.zeros(1 + self.m, column, dtype=torch.float64)
        minus_bound = torch.zeros(1 + self.m, dtype=torch.float64)
        matrix[0, 0], row = 1.0, 1
        for limit in limits:
            m, start = len(limit.names), place[id(limit)]
            if isinstance(limit, Limit):
                matrix[row : row + m, start : start + len(limit.who)] = limit.contrast
                minus_bound[row : row + m] = -limit.bound
            else:
                matrix[row : row + m, start : start + m] = torch.eye(m)
            row += m
        return matrix, minus_bound

    def matrices(self, dtype: torch.dtype, device: torch.device) -> Matrices:
        """A and -b in a precision and on a device."""
        if (dtype, device) not in self._cache:
            whole = self._matrix.to(device, dtype)
            made = Matrices(whole, self._minus_bound.to(device, dtype), whole[0].clone(), whole[1:].t().contiguous())
            self._cache[dtype, device] = made
        return self._cache[dtype, device]

    def evaluated(self, totals: SumsCounts) -> Tensor:
        """[f, c], (1+m,); NaN where a cell that it needs has no row."""
        own = self.matrices(totals.sums.dtype, totals.sums.device)
        return torch.addmv(own.minus_bound, own.whole, totals.sums / totals.counts)

    def weights(self, f: float | Tensor, w: Tensor | None, counts: Tensor) -> Tensor:
        """The weight (1+q,) of every sum in f * F + w'C."""
        own = self.matrices(counts.dtype, counts.device)
        return combined(own.objective, own.constraints, f, w) / counts

    def present(self, counts: Tensor) -> Tensor:
        """(1+m,) whether every cell that a row needs has rows."""
        whole = self.matrices(counts.dtype, counts.device).whole
        return ((whole != 0) & (counts <= 0)).sum(1) == 0

    def filled(self, totals: SumsCounts) -> SumsCounts:
        """The same with 0 for the mean of a cell without rows, so that the others can be read."""
        empty = totals.counts <= 0
        return SumsCounts(torch.where(empty, 0.0, totals.sums), torch.where(empty, 1.0, totals.counts))

    # Mini-batches -----------------------------------------------------------------------------------------------------

    def read(self, rows: MiniBatch, true: bool = False) -> BatchStatistics:
        """A mini-batch; with `true`, with the true rates in place of their stand-ins."""
        values, functions = self.values(rows, true)
        return BatchStatistics(values, functions, self.layout(rows))

    def layout(self, rows: MiniBatch) -> Layout:
        """Which rows count where."""
        losses = rows.losses
        again = self._layouts.again(rows)
        if again is not None:
            return again
        if losses.ndim != 1:
            rows.check()  # says it in words
        work = torch.float64 if losses.dtype == torch.float64 else torch.float32
        if not self.loss_alone or not 0 < self.m * losses.shape[0] <= MOST_IN_A_MAP:
            return self._layouts.of(rows, work, None)
        own = self.matrices(work, losses.device)
        return self._layouts.of(rows, work, (own.whole, own.minus_bound))

    def values(self, rows: MiniBatch, true: bool = False) -> tuple[list[Tensor], Tensor | None]:
        """What is differentiated: the loss and every other value, one number per row, and the user's functions."""
        values = [rows.losses if block.value is None else self._value(block, rows, true) for block in self.blocks]
        functions = [_function_value(limit, rows) for limit in self.functions]
        return values, torch.cat(functions) if functions else None

    def _value(self, block: Block, rows: MiniBatch, true: bool) -> Tensor:
        limit = block.limits[0]
        chosen = limit.true if true and limit.true is not None else limit.value
        assert chosen is not None
        outputs = rows.needed("outputs", f"the limit {limit.names[0]!r}")
        labels = rows.losses if rows.labels is None else rows.labels  # a rate does not read them
        found = chosen(outputs, labels)
        if found.numel() != rows.losses.shape[0]:
            raise ValueError(f"the value of {limit.names[0]!r} must be one number per row, got {tuple(found.shape)}")
        return found.reshape(-1)

    def check(self, rows: MiniBatch) -> None:
        """Shapes, columns, and groups beyond those that a limit knows, which would be left out without a word."""
        limits = [limit for block in self.blocks for limit in block.limits if limit.needs_groups]
        rows.check([limit.by for limit in limits])
        for limit in limits:
            column, known = rows.column(limit.by), limit.groups
            if known is not None and column.numel() and (int(column.max()) >= known or int(column.min()) < -1):
                raise ValueError(
                    f"groups must be 0 to {known - 1}, or -1 for none, found {int(column.min())} to "
                    f"{int(column.max())} for the limit {limit.names[0]!r}"
                )


def combined(objective: Tensor, constraints: Tensor, f: float | Tensor, w: Tensor | None) -> Tensor:
    """f * objective + constraints @ w; in a step of most methods f is 1."""
    scaled = objective if isinstance(f, float) and f == 1.0 else objective * f
    if w is None:
        return scaled.clone() if scaled is objective else scaled  # they may become a gradient, clipped in place
    return torch.addmv(scaled, constraints, w if w.dtype == scaled.dtype else w.to(scaled.dtype))


def _function_value(limit: FunctionLimit, rows: MiniBatch) -> Tensor:
    found = limit.fun(rows)
    if found.shape != (len(limit.names),):
        raise ValueError(
            f"the function of {limit.names} must give {len(limit.names)} values, got shape {tuple(found.shape)}"
        )
    return found
