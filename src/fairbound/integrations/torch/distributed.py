"""Sums and counts over the processes of a distributed run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from fairbound.constraints.cells import present_cells
from fairbound.constraints.comparisons import SumsCounts


@dataclass(frozen=True)
class Processes:
    """The processes that share a step; one, where nothing is distributed."""

    size: int = 1
    group: Any = None
    model: DistributedDataParallel | None = None

    @staticmethod
    def of(model: object) -> Processes:
        """Those of a DistributedDataParallel model."""
        while not isinstance(model, DistributedDataParallel) and hasattr(model, "_orig_mod"):
            model = model._orig_mod  # what torch.compile put around it
        if not isinstance(model, DistributedDataParallel):
            if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
                warnings.warn(
                    "several processes run, and Constrained was not given a DistributedDataParallel model: each of "
                    "them has separate multipliers; give it the wrapped model",
                    UserWarning,
                    stacklevel=4,
                )
            return Processes()
        return Processes(distributed.get_world_size(model.process_group), model.process_group, model)

    @property
    def alone(self) -> bool:
        """Whether nothing is distributed."""
        return self.model is None and self.size == 1

    @property
    def out_of_step(self) -> bool:
        """Whether gradients stay with their process for now: inside DistributedDataParallel's no_sync()."""
        return self.model is not None and not self.model.require_backward_grad_sync

    def summed(self, totals: SumsCounts) -> SumsCounts:
        """The totals of all processes: what one process would see on all their examples."""
        if self.size == 1:
            return totals
        both = torch.stack([totals.sums, totals.counts])
        distributed.all_reduce(both, group=self.group)
        return SumsCounts(both[0], both[1])

    def present_cells(self, layer: Tensor, none: int) -> tuple[Tensor, Tensor]:
        """The cells that the mini-batches of all processes show, and the place of this one's examples among them."""
        if self.size == 1:
            return present_cells(layer, none)
        sizes = [torch.zeros(1, dtype=torch.long, device=layer.device) for _ in range(self.size)]
        distributed.all_gather(sizes, torch.tensor([len(layer)], device=layer.device), group=self.group)
        widest = max(int(size) for size in sizes)
        padded = torch.cat([layer, layer.new_full((widest - len(layer),), none)])
        layers = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(layers, padded, group=self.group)
        cells, places = present_cells(torch.cat(layers), none)
        start = distributed.get_rank(self.group) * widest
        return cells, places[start : start + len(layer)]
