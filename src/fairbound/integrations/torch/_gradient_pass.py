"""One gradient into `.grad`, by one backward pass or by one for each mini-batch of an accumulated
step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fairbound.integrations.torch._checks import check_dependence
from fairbound.integrations.torch._distributed import Processes
from fairbound.integrations.torch._parameters import (
    Grads,
    Parameters,
    SmoothedParameters,
    check_graphs,
    clear,
    graph_error,
    non_finite,
)


def loss_scale(scaler: torch.amp.GradScaler | None, device: torch.device) -> float | Tensor:
    """What a GradScaler multiplies a loss by; `scale` also initializes a new scaler for unscale_
    and step."""
    if scaler is None:
        return 1.0
    factor: Tensor = scaler.scale(torch.ones((), device=device))
    return float(factor) if device.type == "cpu" else factor


class GradientPass:
    """What backward passes add to `.grad`, until it is kept or undone.

    `.grad` is stashed first, unless DistributedDataParallel reduces what it accumulates. Backward
    passes go through `.grad`, so that hooks, mixed precision and DistributedDataParallel see them.
    """

    def __init__(
        self,
        parameters: Parameters,
        processes: Processes,
        scaler: torch.amp.GradScaler | None,
        scale: float,
    ) -> None:
        self.parameters, self.processes, self.scaler = parameters, processes, scaler
        self.factor = loss_scale(scaler, parameters.device) * scale
        self.held: Grads = parameters.stash_grads() if processes.model is None else []

    def add(self, tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """One backward pass of a weighted sum."""
        check_graphs(tensors)
        # gradients are reduced to their mean, and the sum is wanted
        factor = self.factor * self.processes.size
        if isinstance(factor, Tensor) or factor != 1.0:
            weights = [weight * factor for weight in weights]
        try:
            torch.autograd.backward(tensors, weights)
        except RuntimeError as error:
            raise graph_error(error) from None

    def keep(
        self,
        numbers: Sequence[Tensor],
        smoothed: SmoothedParameters | None,
        smoothing: tuple[float, float] | None,
        *,
        look: bool,
    ) -> Tensor | None:
        """() bool whether the gradient and all `numbers` of the step are finite; then `.grad` has
        the whole direction.

        With a `look` at it: None where all is finite, else nothing is kept. Without one nothing
        waits for the device; where something is not finite, this pass adds 0 to `.grad`, or for a
        GradScaler a NaN. Gradients that DistributedDataParallel reduced are the same in all
        processes, so each decides alone; there `.grad` is emptied, since what it had accumulated is
        lost with what is not finite.
        """
        gradients = [] if self.processes.out_of_step else self.parameters.grads()
        check_dependence(bool(gradients) or self.processes.out_of_step)
        bad = non_finite([*numbers, *gradients], self.processes.shards)
        made = None
        if not look:
            made = bad[0] == 0
            clear(gradients, made)
        elif bad.item():
            self.parameters.stash_grads()
            self.undo()
            return bad[0] == 0
        if smoothed is not None and smoothing is not None:
            if self.parameters.sharded and self.processes.out_of_step:
                raise ValueError(
                    "the method adds vectors to the gradients of all processes, which"
                    " set_requires_gradient_sync(False) holds back; use accumulate() first, or"
                    " omit it"
                )
            smoothed.pull(*smoothing, self.factor, made)
        if self.held:
            self.parameters.add_grads(self.held)
            self.held = []
        if made is not None and self.scaler is not None and self.scaler.is_enabled():
            self.parameters.poison_grads(unless=made)
        return made

    def undo(self) -> None:
        """Leave `.grad` as it was."""
        if self.held:
            self.parameters.restore_grads(self.held)
