"""Gradients of a mini-batch into `.grad`: three ways, by what a method does with them.

- `InPlace`: the method's step is linear in x, the gradient and its own vectors (descent-ascent, SSL-ALM). It only gives
  coefficients; one backward pass then writes into `.grad`, as in unconstrained training, and the vectors are added
  there. No further vector of the model's size is made.
- `Flat`: the method does more with such vectors (a norm, a clamp). The backward pass goes through `.grad` all the
  same, so that hooks, mixed precision and DistributedDataParallel see it; then it is read as one flat vector, and the
  direction takes its place.
- `Closed`: the method wants several gradients of one mini-batch (Ghost). They are taken beside `.grad`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairbound.integrations.torch.distributed import Processes
from fairbound.integrations.torch.flat_params import FlatParams, Grads, finite
from fairbound.integrations.torch.vectors import Coefficient, Combination, Gradient


class GradientWriter(ABC):
    """How one step reads its gradients and writes its direction."""

    held: Grads  # what `.grad` held before

    def __init__(
        self,
        parameters: FlatParams,
        processes: Processes,
        scaler: torch.amp.GradScaler | None = None,
        scale: float = 1.0,
    ) -> None:
        self.parameters, self.processes = parameters, processes
        self.loss_scale = 1.0
        if scaler is not None:  # as `scaler.scale(loss)` does, which initializes a new scaler for unscale_ and step
            self.loss_scale = float(scaler.scale(torch.ones((), device=parameters.device)))
        self.scale = scale
        self.held = []

    @abstractmethod
    def point(self) -> Any:
        """The x that the method sees."""

    @abstractmethod
    def gradient_of(self, tensors: list[Tensor], weights: list[Tensor]) -> Any:
        """The gradient of the weighted sum of a mini-batch's values."""

    @abstractmethod
    def finish(self, d: Any, step: float | Tensor, old: Sequence[Any], new: Sequence[Any]) -> bool:
        """Leave d / -step in `.grad`; False, and nothing changed, if it or the new state's tensors are not finite.

        `old` and `new` are the leaves of the state.
        """

    def undo(self) -> None:
        """Leave `.grad` as it was."""
        if self.held:
            self.parameters.restore_grads(self.held)

    def backward(
        self, tensors: list[Tensor], weights: list[Tensor], factor: Coefficient, *, retain: bool = False
    ) -> None:
        """One backward pass into `.grad`."""
        factor = factor * self.processes.size  # gradients are reduced to their mean, and the sum is wanted
        for tensor in tensors:
            if not tensor.requires_grad:
                raise ValueError(
                    "the losses, or the outputs that a constraint reads, carry no graph to differentiate; compute "
                    "them from the model outside torch.no_grad(), without .detach() or .item()"
                )
        try:
            if isinstance(factor, Tensor) or factor != 1.0:
                weights = [weight * factor for weight in weights]
            torch.autograd.backward(tensors, weights, retain_graph=retain)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise ValueError(
                "the graph of these losses was used before: by another backward(), or by a method that takes several "
                "gradients of one mini-batch; use fair.backward_closure(evaluate) for such a method"
            ) from error


def direction_of(d: Tensor, step: float | Tensor, new: Sequence[Tensor]) -> Tensor:
    """d / -step, in d's own memory unless the new state shares it; 0 for a step of 0, whose d is 0."""
    if any(leaf.untyped_storage().data_ptr() == d.untyped_storage().data_ptr() for leaf in new):
        d = d.clone()
    return d.div_(-float(step)) if float(step) else torch.zeros_like(d)


class InPlace(GradientWriter):
    """For a method whose step is linear in vectors of the model's size: it runs on symbols (`vectors`)."""

    def point(self) -> Any:
        return self.parameters.x

    def gradient_of(self, tensors: list[Tensor], weights: list[Tensor]) -> Combination:
        return Combination({Gradient(tensors, weights): 1.0}, self.parameters.x.like)

    def finish(self, d: Combination, step: float | Tensor, old: Sequence[Any], new: Sequence[Any]) -> bool:
        self.open(d, step)
        *others, last = self.direction.gradients()
        for gradient, coefficient in others:
            tensors, weights = gradient.asked
            self.backward(tensors, weights, coefficient, retain=True)  # perhaps of the same mini-batch
        tensors, weights = last[0].asked
        self.backward(tensors, weights, last[1])
        return self.close(old, new)

    def open(self, d: Combination, step: float | Tensor) -> None:
        """Stash what `.grad` holds; not where DistributedDataParallel reduces what it accumulates."""
        factor = self.loss_scale * self.scale
        self.direction = d.divided(-step) if factor == 1.0 else d.divided(-step) * factor
        if self.processes.model is None:
            self.held = self.parameters.stash_grads()

    def close(self, old: Sequence[Any], new: Sequence[Any]) -> bool:
        """Check the gradients, add the vectors and what was stashed; False, and nothing changed, if not finite.

        Gradients that DistributedDataParallel reduced are the same in all processes, so each decides alone. There
        `.grad` is emptied, since what it had accumulated is lost with what is not finite.
        """
        numbers = [leaf for leaf in new if isinstance(leaf, Tensor)]
        checked = numbers if self.processes.out_of_step else [*numbers, *self.parameters.grads()]
        if not finite(checked, self.processes.shards):
            self.parameters.stash_grads()
            self.undo()
            return False
        if self.parameters.sharded and self.processes.out_of_step and self.direction.vectors():
            raise ValueError(
                "the method adds vectors to the gradients of all processes, which set_requires_gradient_sync(False) "
                "holds back; use accumulate() first, or omit it"
            )
        self.parameters.advance(self.direction, old, new)
        if self.held:
            self.parameters.add_grads(self.held)
        self.held = []
        return True


class Flat(GradientWriter):
    """For a method with vectors of the model's size."""

    again = False  # whether `.grad` has another gradient of this step
    several = False  # whether a mini-batch is differentiated more than once

    def point(self) -> Tensor:
        self.held, self.again = self.parameters.stash_grads(), False
        return self.parameters.flat()

    def gradient_of(self, tensors: list[Tensor], weights: list[Tensor]) -> Tensor:
        if self.again:
            self.parameters.stash_grads()
        self.again = True
        self.backward(tensors, weights, self.loss_scale, retain=self.several)
        return self.gradient()

    def gradient(self) -> Tensor:
        found = self.parameters.gradient()
        return found if self.loss_scale == 1.0 else found / self.loss_scale

    def finish(self, d: Tensor, step: float | Tensor, old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
        if finite([d, *new]):
            direction = direction_of(d, step, new)
            factor = self.loss_scale * self.scale
            self.parameters.write(direction if factor == 1.0 else direction * factor, self.held)
            self.held = []
            return True
        if self.loss_scale == 1.0:
            self.undo()
        return False  # a scaler must see the infinities that it made, to lower its scale


class Closed(Flat):
    """For a method that takes several gradients of a mini-batch."""

    def gradient_of(self, tensors: list[Tensor], weights: list[Tensor]) -> Tensor:
        return self.parameters.gradient_of(tensors, weights)

    def finish(self, d: Tensor, step: float | Tensor, old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
        self.undo()
        if not finite([d, *new]):
            return False
        self.parameters.add(direction_of(d, step, new) * self.scale)
        return True
