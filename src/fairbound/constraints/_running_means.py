"""Running means of cells: they replace absent groups of a mini-batch in rows that refer to the mean
of all groups.

A row "A - mean" of a mini-batch without group B takes B's part of the mean from B's running mean. A
cell that was never seen counts as the mean of the others, so that it changes nothing. The table has
two numbers a cell; a mini-batch reads and writes the entries of its own cells, and their changes
update the mean of all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairbound.constraints._contrasts import Others

MEAN_MEMORY = 0.9  # what earlier mini-batches count, each time that a cell is seen again


class RunningMeans:
    """Running means of the K cells of one constraint, in double precision; index K is for no
    cell."""

    def __init__(self, shares: Tensor) -> None:
        # (K+1,) what every cell counts in the mean
        self.shares = torch.cat([shares, shares.new_zeros(1)]).double()
        self.means = torch.zeros_like(self.shares)  # (K+1,) 0 where a cell was never seen
        # the examples behind them, earlier ones counting less
        self.weights = torch.zeros_like(self.means)
        self.total = self.shares.new_zeros(())  # () shares * means
        self.share = self.shares.new_zeros(())  # () of the cells seen

    def others(self, cells: Tensor, counts: Tensor) -> Others:
        """What is known of the cells that a mini-batch does not show; it has `counts` examples of
        `cells`, (S,)."""
        present = counts > 0
        shares, weights, means = self._read(cells)
        shares = shares * present
        share = (self.share + (shares * (weights == 0)).sum()).clamp(
            min=torch.finfo(torch.float32).tiny
        )
        part = self.total - (shares * means).sum()
        return Others(present, share.to(counts.dtype), part.to(counts.dtype))

    def add(
        self, cells: Tensor, sums: Tensor, counts: Tensor, memory: float | Tensor = MEAN_MEMORY
    ) -> None:
        """A mini-batch's sums and counts; cells without examples stay as they are."""
        shares, weights, means = self._read(cells)
        present = counts > 0
        now = torch.where(present, memory * weights + counts, weights)
        change = torch.where(present, (sums - counts * means) / now, 0.0)
        self.share = self.share + (shares * ((weights == 0) & present)).sum()
        self.total = self.total + (shares * change).sum()
        self.means.scatter_(0, cells, means + change)
        self.weights.scatter_(0, cells, now)

    def _read(self, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shares, weights and means of some cells."""
        return self.shares[cells], self.weights[cells], self.means[cells]

    def state_dict(self) -> dict[str, Any]:
        return {
            name: getattr(self, name).clone() for name in ("means", "weights", "total", "share")
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        for name, value in saved.items():
            setattr(self, name, value.detach().to(self.shares.device, copy=True))
