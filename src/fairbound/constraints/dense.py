"""Few cells: [f, c] as one matrix over the table of sums, so that a step takes a handful of operations.

Every row is an entry of `direct @ means`, less the mean of all cells of its part where it refers to that:

    values = A means - bound,    A = direct + against shares'

In a mini-batch without some group the group's running mean stands in that mean; a cell that was never seen counts as
the mean of the others, so that it changes nothing. A row that is about an absent cell itself is not observed. Nothing
here branches on values, so nothing waits for a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.constraints.constraint import Constraint
from fairbound.constraints.constraint_set import ConstraintSet
from fairbound.constraints.running_means import MEMORY

TINY = 1e-300  # a divisor for 0
ENTRIES = 1 << 16  # of the matrix, up to which it is written out: a product takes some 20 microseconds


class Affine(NamedTuple):
    """[f, c] of one mini-batch as a function of its means, (1+q+2,)."""

    matrix: Tensor  # (1+m, 1+q+2)
    transposed: Tensor
    empty: Tensor | None = None  # (1+q+2,) 1 for means without examples
    signs: Tensor | None = None  # (1+m,) of the rows, where some are absolute values

    def mean_weights(self, w: Tensor) -> Tensor:
        """(1+q+2,) the weight of every mean in w'[f, c], w (1+m,)."""
        return self.transposed.mv(w if self.signs is None else w * self.signs)

    def jacobian(self, rows: Tensor) -> Tensor:
        """(m, n) from the gradients of the cell means, (q, n)."""
        matrix = self.matrix if self.empty is None else self.matrix * (1 - self.empty)
        jacobian = matrix[1:, 1:-2].to(rows.dtype) @ rows
        return jacobian if self.signs is None else self.signs[1:, None].to(rows.dtype) * jacobian


class Means(NamedTuple):
    """Running means of all entries of the table, (1+q+2,), and the examples behind them, earlier ones counting less."""

    means: Tensor
    weights: Tensor


class DenseConstraints:
    """The matrices of a set of constraints, in double precision on a device."""

    def __init__(self, constraints: ConstraintSet, device: torch.device) -> None:
        m, q = constraints.m, sum(part.size for part in constraints.parts)
        direct, needed = torch.zeros(2, 1 + m, 3 + q, dtype=torch.float64)
        bound, surplus = torch.zeros(2, 1 + m, dtype=torch.float64)
        absolute = torch.zeros(1 + m, dtype=torch.bool)
        direct[0, 0] = needed[0, 0] = 1.0
        needed[0, -1], surplus[0] = -1.0, 1.0  # an unknown group: the objective is as good as absent
        shares, against = [], []
        row, column = 1, 1
        for part in constraints.parts:
            rows, columns = slice(row, row + part.m), slice(column, column + part.size)
            if isinstance(part, Constraint):
                own = part.contrast.direct()
                direct[rows, columns], bound[rows], absolute[rows] = own, part.bound.to(bound), part.absolute
                if part.contrast.shares_of_mean is not None:
                    shares.append(torch.zeros(3 + q, dtype=torch.float64))
                    shares[-1][columns] = part.contrast.shares_of_mean.to(bound)
                    against.append(torch.zeros(1 + m, dtype=torch.float64))
                    against[-1][rows] = -own.sum(1)
            else:
                direct[rows, columns] = torch.eye(part.m)
            needed[rows, columns] = (direct[rows, columns] != 0).double()
            row, column = row + part.m, column + part.size
        self.direct, self.needed = direct.to(device), needed.to(device)
        self.minus_bound, self.surplus = -bound.to(device), surplus.to(device)
        self.absolute = absolute.to(device) if bool(absolute.any()) else None
        self.refers = bool(shares)
        self.shares = torch.stack([*shares, torch.zeros(3 + q, dtype=torch.float64)]).to(device)
        self.against = torch.stack([*against, torch.zeros(1 + m, dtype=torch.float64)], 1).to(device)
        self.complete = torch.addmm(self.direct, self.against, self.shares)  # where every cell was seen
        self.transposed = self.complete.t()

    @staticmethod
    def suits(constraints: ConstraintSet) -> bool:
        """Whether the matrix is small."""
        return (1 + constraints.m) * (3 + sum(part.size for part in constraints.parts)) <= ENTRIES

    def no_means(self) -> Means | None:
        """Before the first mini-batch; None where no row refers to the mean of all cells."""
        return None if not self.refers else Means(*torch.zeros_like(self.direct[:2]))

    def values(
        self, sums: Tensor, counts: Tensor, running: Means | None, look: bool
    ) -> tuple[Tensor, Tensor | None, Tensor, Affine]:
        """Of a table of sums and counts: (1+m,) values, (1+m,) the rows that lack a cell, counts without 0, the map.

        With a `look` at the counts, no rows are None.
        """
        if look and self.absolute is None:
            *numbers, _, unknown = counts.tolist()
            if min(numbers) > 0 and not unknown:
                filled = counts.clamp(min=TINY)
                values = torch.addmv(self.minus_bound, self.complete, sums / filled)
                return values, None, filled, Affine(self.complete, self.transposed)
        empty = (counts <= 0).to(counts.dtype)
        filled = counts + empty
        means = sums / filled if running is None else torch.addcdiv(empty * running.means, sums, filled)
        matrix = self.complete
        if running is not None:
            shares = self.shares * (running.weights + counts > 0)
            shares = shares / shares.sum(1, keepdim=True).clamp(min=TINY)
            matrix = torch.addmm(self.direct, self.against, shares)
        missing = torch.addmv(self.surplus, self.needed, empty) != 0
        if self.absolute is None:
            return torch.addmv(self.minus_bound, matrix, means), missing, filled, Affine(matrix, matrix.t(), empty)
        gaps = matrix.mv(means)
        signs = torch.where(self.absolute, gaps.sign(), 1.0)
        return gaps * signs + self.minus_bound, missing, filled, Affine(matrix, matrix.t(), empty, signs)

    @staticmethod
    def updated(running: Means, sums: Tensor, counts: Tensor, made: Tensor | None) -> Means:
        """The running means after a mini-batch, unless `made` () bool says otherwise; entries without examples stay."""
        seen = counts > 0 if made is None else (counts > 0) & made
        weights = torch.add(counts, running.weights, alpha=MEMORY)
        means = torch.addcdiv(running.means, torch.addcmul(sums, counts, running.means, value=-1.0), weights)
        return Means(torch.where(seen, means, running.means), torch.where(seen, weights, running.weights))
