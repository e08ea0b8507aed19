r"""Running averages of the gradients and constraints of mini-batches, at a point that moves.

    g+ = (1 - a) g + a grad f(x, xi)
    R+ = (1 - a) R + a grad of the cell means(x, zeta),   J = the Jacobian that R combines to
    c+ = (1 - a) (c + J (x - x_prev)) + a c(x, zeta)              with the old R

The correction moves the old average of c to the new point, to first order: without noise and with
linear constraints c+ is c(x) whatever path x takes. J is combined from the gradients of the cell
means, of which there are as many as groups, not as constraints (all pairs of 5 groups: 20
constraints, 5 cells).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.core import Estimate


class Averages(NamedTuple):
    g: Tensor  # (n,) of the objective's gradient
    c: Tensor  # (m,) of the constraints, moved to x
    rows: Tensor  # (q, n) of the gradients that the Jacobian is combined from
    x: Tensor  # (n,) the point of the last estimate

    @staticmethod
    def start(x: Tensor, m: int, first: Estimate | None) -> Averages:
        """State before the first estimate, which counts in full; `first` shows how many rows there
        are (m without it)."""
        rows = m if first is None or first.cells is None else first.cells.size
        return Averages(
            torch.zeros_like(x), x.new_zeros(m), x.new_zeros(rows, x.shape[0]), x.clone()
        )

    def updated(self, x: Tensor, e: Estimate, a: float | Tensor) -> tuple[Averages, Tensor]:
        """Averages with a new estimate, which counts a; and the averaged Jacobian (m, n)."""
        new_rows = e.jac() if e.cells is None else e.cells.gradients()
        moved = combined(e, (self.rows @ (x - self.x)).unsqueeze(-1)).squeeze(-1)
        c = (1 - a) * (self.c + moved) + a * e.c
        rows, g = (1 - a) * self.rows + a * new_rows, (1 - a) * self.g + a * e.grad(f=1.0)
        return Averages(g, c, rows, x), combined(e, rows)


def combined(e: Estimate, rows: Tensor) -> Tensor:
    """The Jacobian (m, n) of the gradients of cells, (q, n)."""
    return rows if e.cells is None else e.cells.combine(rows)


def absent(e: Estimate) -> Tensor:
    """(m,) the constraints that the mini-batch says nothing of."""
    return torch.zeros_like(e.c, dtype=torch.bool) if e.absent is None else e.absent
