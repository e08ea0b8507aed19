"""One gradient into `.grad`, by one backward pass or by one for each mini-batch of an accumulated step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fairbound.integrations.torch.distributed import Processes
from fairbound.integrations.torch.parameters import (
    Grads,
    Parameters,
    SmoothedParameters,
    check_graphs,
    clear,
    explained_graph,
    finite,
    non_finite,
)


def loss_scale(scaler: torch.amp.GradScaler | None, device: torch.device) -> float | Tensor:
    """What a GradScaler multiplies a loss by; `scale` also initializes a new scaler for unscale_ and step."""
    if scaler is None:
        return 1.0
    factor: Tensor = scaler.scale(torch.ones((), device=device))
    return float(factor) if device.type == "cpu" else factor


class GradientPass:
    """What backward passes add to `.grad`, until it is kept or undone.

    `.grad` is stashed first, unless DistributedDataParallel reduces what it accumulates. Backward passes go through
    `.grad`, so that hooks, mixed precision and DistributedDataParallel see them.
    """

    def __init__(
        self, parameters: Parameters, processes: Processes, scaler: torch.amp.GradScaler | None, scale: float
    ) -> None:
        self.parameters, self.processes = parameters, processes
        self.factor = loss_scale(scaler, parameters.device) * scale
        self.held: Grads = parameters.stash_grads() if processes.model is None else []

    def add(self, tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """One backward pass of a weighted sum."""
        check_graphs(tensors)
        factor = self.factor * self.processes.size  # gradients are reduced to their mean, and the sum is wanted
        if isinstance(factor, Tensor) or factor != 1.0:
            weights = [weight * factor for weight in weights]
        with explained_graph():
            torch.autograd.backward(list(tensors), list(weights))

    def keep(
        self,
        state: Sequence[Tensor],
        smoothed: SmoothedParameters | None = None,
        smoothing: tuple[float, float] | None = None,
    ) -> bool:
        """Add what was stashed, and the pull of a smoothed x; False, and nothing changed, if something is not finite.

        The numbers of the method's next state are checked as well. Gradients that DistributedDataParallel reduced are
        the same in all processes, so each decides alone. There `.grad` is emptied, since what it had accumulated is
        lost with what is not finite.
        """
        gradients = [] if self.processes.out_of_step else self.parameters.grads()
        if not finite([*(leaf.contiguous() for leaf in state), *gradients], self.processes.shards):
            self.parameters.stash_grads()
            self.undo()
            return False
        self._finish(smoothed, smoothing)
        return True

    def keep_unseen(
        self,
        finite: Tensor,
        state: Sequence[Tensor],
        smoothed: SmoothedParameters | None = None,
        smoothing: tuple[float, float] | None = None,
    ) -> Tensor:
        """The same without a wait for the device; () bool whether all is finite, `finite` included.

        Where it is not, this pass adds 0 to `.grad`.
        """
        gradients = [] if self.processes.out_of_step else self.parameters.grads()
        made = finite & ~non_finite([*(leaf.contiguous() for leaf in state), *gradients], self.processes.shards)
        clear(gradients, made)
        self._finish(smoothed, smoothing, made)
        return made

    def _finish(
        self,
        smoothed: SmoothedParameters | None,
        smoothing: tuple[float, float] | None,
        made: Tensor | None = None,
    ) -> None:
        """Add the pull of a smoothed x, and what was stashed."""
        if smoothed is not None and smoothing is not None:
            if self.parameters.sharded and self.processes.out_of_step:
                raise ValueError(
                    "the method adds vectors to the gradients of all processes, which set_requires_gradient_sync(False)"
                    " holds back; use accumulate() first, or omit it"
                )
            smoothed.pull(*smoothing, self.factor, made)
        if self.held:
            self.parameters.add_grads(self.held)
        self.held = []

    def undo(self) -> None:
        """Leave `.grad` as it was."""
        if self.held:
            self.parameters.restore_grads(self.held)
