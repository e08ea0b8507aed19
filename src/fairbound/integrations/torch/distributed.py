"""Sums and counts over the processes of a distributed run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from fairbound.constraints.constraint_set import SumsCounts


@dataclass(frozen=True)
class Processes:
    """The processes that share a step; one, where nothing is distributed."""

    size: int = 1  # processes with examples of their own
    groups: tuple[Any, ...] = ()  # of theirs, one for each dimension of a mesh: a sum over all is one over each in turn
    shards: tuple[Any, ...] = ()  # groups of processes that hold different pieces of the parameters
    model: DistributedDataParallel | None = None

    @staticmethod
    def of(model: object, parameters: Sequence[Tensor]) -> Processes:
        """Those of a DistributedDataParallel or `fully_shard`ed model."""
        while not isinstance(model, DistributedDataParallel) and hasattr(model, "_orig_mod"):
            model = model._orig_mod  # what torch.compile put around it
        if isinstance(model, DistributedDataParallel):
            group = model.process_group
            return Processes(distributed.get_world_size(group), (group,), model=model)
        meshes = {p.device_mesh for p in parameters if hasattr(p, "device_mesh")}
        if not meshes:
            _warn_if_several_run()
            return Processes()
        if not isinstance(model, nn.Module):
            raise ValueError("the parameters are spread over processes (FSDP); give Constrained the module itself")
        groups = _data_groups(model)
        size = math.prod(distributed.get_world_size(group) for group in groups)
        return Processes(size, groups, tuple(group for mesh in meshes for group in mesh.get_all_groups()))

    @property
    def out_of_step(self) -> bool:
        """Whether gradients stay with their process for now: inside DistributedDataParallel's no_sync()."""
        return self.model is not None and not self.model.require_backward_grad_sync

    def summed(self, totals: SumsCounts) -> SumsCounts:
        """The totals of all processes: what one process would see on all their examples."""
        if self.size == 1:
            return totals
        both = torch.stack([totals.sums, totals.counts])
        for group in self.groups:
            distributed.all_reduce(both, group=group)
        return SumsCounts(both[0], both[1])


def _data_groups(model: nn.Module) -> tuple[Any, ...]:
    """The groups that `fully_shard` reduces gradients over: the data dimensions of its mesh, without tensor parallel ones.

    A parameter's own mesh has the tensor parallel ones as well, and does not tell them apart.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            own = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]  # since torch 2.12, before
            if own[0] is not None:
                names = ("shard_process_group", "replicate_process_group")
                return tuple(getattr(own[0].mesh_info, name) for name in names if hasattr(own[0].mesh_info, name))
    return ()  # tensor parallel alone: all processes have the same examples


def _warn_if_several_run() -> None:
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        warnings.warn(
            "several processes run, and Constrained was given neither a DistributedDataParallel model nor one after "
            "fully_shard(): each of them has separate multipliers; give it that model",
            UserWarning,
            stacklevel=5,
        )
