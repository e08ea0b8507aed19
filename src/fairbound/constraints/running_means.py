"""Running means of cells: what stands for the groups that a mini-batch does not show, where rows refer to a mean of all.

A row "A - mean" of a mini-batch without group B takes B's part of the mean from B's running mean. A cell that was never
seen counts as the mean of the others, so that it changes nothing. One table of two numbers a cell; a mini-batch reads
and writes the entries of its own cells, and the mean of all is kept up to date by their changes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairbound.constraints.contrasts import Others

MEMORY = 0.9  # what earlier mini-batches count, each time that a cell is seen again


class RunningMeans:
    """Of the K cells of one constraint, in double precision; index K is for no cell."""

    def __init__(self, shares: Tensor) -> None:
        self.shares = torch.cat([shares, shares.new_zeros(1)]).double()  # (K+1,) what every cell counts in the mean
        self.means = torch.zeros_like(self.shares)  # 0 where a cell was never seen
        self.weights = torch.zeros_like(self.shares)  # the examples behind them, earlier ones counting less
        self.total = self.shares.new_zeros(())  # shares * means
        self.share = self.shares.new_zeros(())  # of the cells seen

    def others(self, cells: Tensor, counts: Tensor) -> Others:
        """What is known of the cells that a mini-batch does not show; it has `counts` examples of `cells`."""
        present = counts > 0
        shares = self.shares[cells] * present
        new = shares @ (self.weights[cells] == 0).double()
        share = (self.share + new).clamp(min=torch.finfo(torch.float32).tiny)
        part = self.total - shares @ self.means[cells]
        return Others(present, share.to(counts.dtype), part.to(counts.dtype))

    def add(self, cells: Tensor, sums: Tensor, counts: Tensor) -> None:
        """A mini-batch's sums and counts; cells without examples stay as they are."""
        counts, shares, weights = counts.double(), self.shares[cells], self.weights[cells]
        mean = self.means[cells]
        now = torch.where(counts > 0, MEMORY * weights + counts, weights)
        change = (sums - counts * mean) / now.clamp(min=torch.finfo(torch.float32).tiny)
        self.share = self.share + shares @ ((weights == 0) & (counts > 0)).double()
        self.total = self.total + shares @ change
        self.means[cells], self.weights[cells] = mean + change, now

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).clone() for name in ("means", "weights", "total", "share")}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        for name, value in kept.items():
            setattr(self, name, value.detach().to(self.shares.device, copy=True))
