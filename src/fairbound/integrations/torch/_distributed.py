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

from fairbound.constraints._linear import SumsCounts


@dataclass(frozen=True)
class Processes:
    """The processes that share a step; one, where nothing is distributed."""

    size: int = 1  # processes with examples of their own
    # of theirs, one for each dimension of a mesh: a sum over all is one over each in turn
    groups: tuple[Any, ...] = ()
    shards: tuple[Any, ...] = ()  # groups of processes that hold different pieces of the parameters
    model: DistributedDataParallel | None = None
    sharding: Any = None  # of `fully_shard`: what it knows of its parameters

    @staticmethod
    def of(model: object, parameters: Sequence[Tensor]) -> Processes:
        """Processes of a DistributedDataParallel or `fully_shard`ed model."""
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
            raise ValueError(
                "the parameters are spread over processes (FSDP); give Constrained the module"
                " itself"
            )
        sharding = _sharding(model)
        # none where it is tensor parallel alone
        names = ("shard_process_group", "replicate_process_group")
        mesh_info = getattr(sharding, "mesh_info", None)
        groups = tuple(getattr(mesh_info, name) for name in names if hasattr(mesh_info, name))
        size = math.prod(distributed.get_world_size(group) for group in groups)
        shards = tuple(group for mesh in meshes for group in mesh.get_all_groups())
        return Processes(size, groups, shards, sharding=sharding)

    @property
    def alone(self) -> bool:
        """Whether nothing is distributed."""
        return not self.groups

    @property
    def out_of_step(self) -> bool:
        """Whether gradients stay with their process for now: no_sync(),
        set_requires_gradient_sync(False)."""
        if self.model is not None:
            return not self.model.require_backward_grad_sync
        return self.sharding is not None and not self.sharding.reduce_grads

    def summed(self, totals: SumsCounts) -> SumsCounts:
        """The totals of all processes: what one process would see on all their examples."""
        table = totals.table.clone()
        for group in self.groups:
            distributed.all_reduce(table, group=group)
        return SumsCounts(table)

    def present_cells(self, layer: Tensor, none: int) -> tuple[Tensor, Tensor]:
        """The cells that the mini-batches of all processes show, and the place of this one's
        examples among them."""
        examples, start = len(layer), 0
        for group in self.groups:
            sizes = [
                torch.zeros(1, dtype=torch.long, device=layer.device) for _ in range(group.size())
            ]
            distributed.all_gather(
                sizes, torch.tensor([len(layer)], device=layer.device), group=group
            )
            widest = max(int(size) for size in sizes)
            padded = torch.cat([layer, layer.new_full((widest - len(layer),), none)])
            layers = [torch.empty_like(padded) for _ in sizes]
            distributed.all_gather(layers, padded, group=group)
            layer, start = torch.cat(layers), start + group.rank() * widest
        cells, places = layer.unique(return_inverse=True)
        places = torch.where(layer < none, places, layer - none + len(cells))
        return cells.clamp(max=none), places[start : start + examples]


def full_value(value: Tensor) -> Tensor:
    """A function of parameters that are spread over processes, as all of these see it."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _sharding(model: nn.Module) -> Any:
    """What `fully_shard` keeps of a module's parameters; None: it was not called.

    The groups that it reduces gradients over are the data dimensions of a mesh. A parameter's own
    mesh has the tensor parallel ones as well, and does not tell them apart.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            several = hasattr(state, "_fsdp_param_groups")  # since torch 2.12
            for param_group in state._fsdp_param_groups if several else [state._fsdp_param_group]:
                if param_group is not None:
                    return param_group
    return None


def _warn_if_several_run() -> None:
    if (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    ):
        warnings.warn(
            "several processes run, and Constrained was given neither a DistributedDataParallel"
            " model nor one after fully_shard(): each of them has separate multipliers; give it"
            " that model",
            UserWarning,
            stacklevel=5,
        )
