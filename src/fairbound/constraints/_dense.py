"""Few cells: [f, c] as one matrix over the table of sums, so that a step takes a handful of
operations.

Every row is an entry of `direct @ means`, less the mean of all cells of its part where it refers to
that:

    values = A means - bound,    A = direct + against shares'

In a mini-batch without some group the group's running mean stands in that mean, as sums and counts
of which earlier mini-batches count less; a cell that was never seen counts as the mean of the
others, so that it changes nothing. A row that is about an absent cell itself is not observed. The
objective is NaN without examples, and where a group is unknown. Nothing here branches on values but
a `look`, so nothing else waits for a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.constraints._constraint import Constraint
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.constraints._linear import SumsCounts
from fairbound.constraints._running_means import MEAN_MEMORY

TINY = 1e-300  # a divisor for 0, and the count of a cell that was never seen
# of the matrix, up to which it is written out: a product takes some 20 microseconds
ENTRIES = 1 << 16


class Affine(NamedTuple):
    """[f, c] of one mini-batch as a function of its means, (1+q+2,)."""

    matrix: Tensor  # (1+m, 1+q+2)
    transposed: Tensor
    present: Tensor | None = None  # (1+q+2,) bool: means that have examples; None: all
    signs: Tensor | None = None  # (1+m,) of the rows, where some are absolute values

    def mean_weights(self, w: Tensor) -> Tensor:
        """(1+q+2,) the weight of every mean in w'[f, c], w (1+m,)."""
        return self.transposed.mv(w if self.signs is None else w * self.signs)

    def jacobian(self, rows: Tensor) -> Tensor:
        """(m, n) from the gradients of the cell means, (q, n)."""
        matrix = self.matrix if self.present is None else self.matrix * self.present
        jacobian = matrix[1:, 1:-2].to(rows.dtype) @ rows
        return jacobian if self.signs is None else self.signs[1:, None].to(rows.dtype) * jacobian


class DenseConstraints:
    """The matrices of a set of constraints, in double precision on a device."""

    def __init__(self, constraints: ConstraintSet, device: torch.device) -> None:
        m, q = constraints.m, sum(part.size for part in constraints.parts)
        direct = torch.zeros(1 + m, 3 + q, dtype=torch.float64)
        bound = torch.zeros(1 + m, dtype=torch.float64)
        absolute = torch.zeros(1 + m, dtype=torch.bool)
        direct[0, 0] = direct[0, -1] = 1.0  # NaN where there are no examples, and of unknown groups
        shares, against = [], []
        row, column = 1, 1
        for part in constraints.parts:
            rows, columns = slice(row, row + part.m), slice(column, column + part.size)
            if isinstance(part, Constraint):
                own = part.contrast.direct()
                direct[rows, columns], bound[rows], absolute[rows] = (
                    own,
                    part.bound.to(bound),
                    part.absolute,
                )
                if part.contrast.shares_of_mean is not None:
                    shares.append(torch.zeros(3 + q, dtype=torch.float64))
                    shares[-1][columns] = part.contrast.shares_of_mean.to(bound)
                    against.append(torch.zeros(1 + m, dtype=torch.float64))
                    against[-1][rows] = -own.sum(1)
            else:
                direct[rows, columns] = torch.eye(part.m)
            row, column = row + part.m, column + part.size
        self.direct, self.minus_bound = direct.to(device), -bound.to(device)
        self.needed = self.direct != 0
        self.needed[0] = False
        self.refers = bool(shares)
        self.absolute = absolute.to(device) if bool(absolute.any()) else None
        self.shares = torch.stack([*shares, torch.zeros(3 + q, dtype=torch.float64)]).to(device)
        self.against = torch.stack([*against, torch.zeros(1 + m, dtype=torch.float64)], 1).to(
            device
        )
        # where every cell was seen
        self.complete = torch.addmm(self.direct, self.against, self.shares)
        self.transposed = self.complete.t()

    @staticmethod
    def suits(constraints: ConstraintSet) -> bool:
        """Whether the matrix is small."""
        return (1 + constraints.m) * (3 + sum(part.size for part in constraints.parts)) <= ENTRIES

    def unseen(self) -> SumsCounts:
        """The running sums and counts before the first mini-batch: a mean of 0 for cells, of NaN
        for the objective."""
        table = torch.zeros_like(self.direct[:2])
        table[1], table[0, 0] = TINY, torch.nan
        return SumsCounts(table)

    def values(
        self, totals: SumsCounts, running: SumsCounts, all_seen: bool, look: bool
    ) -> tuple[Tensor, Tensor | None, Tensor, Affine]:
        """Evaluate a mini-batch: (1+m,) values, (1+m,) the rows that lack a cell, counts without 0,
        the map.

        `all_seen` says that every cell has a running mean. With a `look` at the counts, no rows are
        None.
        """
        if look and self.absolute is None:
            *numbers, _, unknown = totals.counts.tolist()
            if min(numbers) > 0 and not unknown:
                filled = totals.counts.clamp(min=TINY)
                values = torch.addmv(
                    self.minus_bound, self.complete[:, :-2], (totals.sums / filled)[:-2]
                )
                return values, None, filled, Affine(self.complete, self.transposed)
        present = totals.counts > 0
        missing = (self.needed > present).any(1)
        sums, counts = torch.where(present, totals.table, running.table).unbind()
        matrix, transposed = self.complete, self.transposed
        if not all_seen:
            shares = self.shares * (counts > TINY)
            shares = shares / shares.sum(1, keepdim=True).clamp(min=TINY)
            matrix = torch.addmm(self.direct, self.against, shares)
            transposed = matrix.t()
        affine = Affine(matrix, transposed, present)
        if self.absolute is None:
            return torch.addmv(self.minus_bound, matrix, sums / counts), missing, counts, affine
        gaps = matrix.mv(sums / counts)
        signs = torch.where(self.absolute, gaps.sign(), 1.0)
        return gaps * signs + self.minus_bound, missing, counts, affine._replace(signs=signs)

    @staticmethod
    def updated(running: SumsCounts, totals: SumsCounts, made: Tensor | None) -> SumsCounts:
        """Running sums after a mini-batch, unless `made` () bool says otherwise; entries without
        examples stay."""
        seen = totals.counts > 0 if made is None else (totals.counts > 0) & made
        return SumsCounts(
            torch.where(
                seen, torch.add(totals.table, running.table, alpha=MEAN_MEMORY), running.table
            )
        )
