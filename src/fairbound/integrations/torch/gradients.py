"""Gradients of a mini-batch into `.grad`: three ways, by what a method does with them.

- `InPlace`: the method's step is a multiple of one gradient (SGD, penalties, descent-ascent). It only gives the
  weights; one backward pass then writes into `.grad`, as in unconstrained training. No vector of the model's size is
  made.
- `Flat`: the method combines the gradient with further vectors (SSL-ALM, switching). The backward pass goes
  through `.grad` all the same, so that hooks, mixed precision and DistributedDataParallel see it; then it is read,
  and the direction takes its place.
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
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        # As `scaler.scale(loss)` does, which initializes a new scaler for unscale_ and step.
        one = torch.ones((), device=parameters.device)
        self.loss_scale = 1.0 if scaler is None else float(scaler.scale(one))
        self.scale = scale
        self.held = []

    @abstractmethod
    def point(self) -> Tensor:
        """The x that the method sees."""

    @abstractmethod
    def gradient_of(self, tensors: list[Tensor], weights: list[Tensor]) -> Tensor:
        """The gradient of the weighted sum of a mini-batch's values."""

    @abstractmethod
    def finish(self, d: Tensor, step: float | Tensor, new: Sequence[Tensor]) -> bool:
        """Leave d / -step in `.grad`; False, and nothing changed, if it or the new state's tensors are not finite."""

    def undo(self) -> None:
        """Leave `.grad` as it was."""
        if self.held:
            self.parameters.restore_grads(self.held)

    def backward(self, tensors: list[Tensor], weights: list[Tensor], factor: float) -> None:
        """One backward pass into `.grad`."""
        factor *= self.processes.size  # DistributedDataParallel takes the mean over them, and the sum is wanted
        for tensor in tensors:
            if not tensor.requires_grad:
                raise ValueError(
                    "the losses, or the outputs that a constraint reads, carry no graph to differentiate; compute "
                    "them from the model outside torch.no_grad(), without .detach() or .item()"
                )
        try:
            torch.autograd.backward(tensors, [weight * factor for weight in weights] if factor != 1.0 else weights)
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


class LazyGradient:
    """The gradient of a method whose step is a multiple of it: nothing reads it, so it is not computed."""

    def _itself(self, *_: Any) -> LazyGradient:
        return self

    def _read(self, *_: Any) -> LazyGradient:
        raise TypeError(
            "the method says is_gradient_step, for which its step is a multiple of one gradient, but it does more "
            "with it; let that property be False"
        )

    __mul__ = __rmul__ = __truediv__ = __neg__ = _itself
    __add__ = __radd__ = __sub__ = __rsub__ = _read

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # as `inspect` and `copy` expect
        return self._read()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> LazyGradient:
        """A step that is a tensor times it."""
        return LAZY if func in (Tensor.mul, Tensor.__mul__, torch.mul) else LAZY._read()


LAZY = LazyGradient()


class InPlace(GradientWriter):
    """For a method whose step is a multiple of one gradient: x is a placeholder, the gradient is lazy."""

    def point(self) -> Tensor:
        self.asked: list[tuple[list[Tensor], list[Tensor]]] = []
        return self.parameters.placeholder

    def gradient_of(self, tensors: list[Tensor], weights: list[Tensor]) -> Tensor:
        self.asked.append((tensors, weights))
        return LAZY  # type: ignore[return-value]

    def finish(self, d: Tensor, step: float | Tensor, new: Sequence[Tensor]) -> bool:
        self.open()
        for tensors, weights in self.asked:
            self.backward(tensors, weights, self.loss_scale * self.scale)
        self.asked = []  # the graph of the losses
        return self.close(new)

    def open(self) -> None:
        """Stash what `.grad` holds; not where DistributedDataParallel reduces what it accumulates."""
        if self.processes.size == 1:
            self.held = self.parameters.stash_grads()

    def close(self, new: Sequence[Tensor]) -> bool:
        """Check the gradients and add what was stashed; False, and `.grad` as it was, if something is not finite.

        Reduced gradients are the same in all processes, so each decides alone. There `.grad` is emptied, since what it
        had accumulated is lost with what is not finite.
        """
        checks = self.scaler is None and not self.processes.out_of_step
        if not finite([*new, *self.parameters.grads()] if checks else new):
            self.parameters.stash_grads()
            self.undo()
            return False
        if self.held:
            self.parameters.add_grads(self.held)
        self.held = []
        return True


class Flat(GradientWriter):
    """For a method with vectors of the model's size."""

    again = False  # whether `.grad` has the gradient of another mini-batch of this step

    def point(self) -> Tensor:
        self.held, self.again = self.parameters.stash_grads(), False
        return self.parameters.flat()

    def gradient_of(self, tensors: list[Tensor], weights: list[Tensor]) -> Tensor:
        if self.again:
            self.parameters.stash_grads()
        self.again = True
        self.backward(tensors, weights, self.loss_scale)
        return self.gradient()

    def gradient(self) -> Tensor:
        found = self.parameters.gradient()
        return found if self.loss_scale == 1.0 else found / self.loss_scale

    def finish(self, d: Tensor, step: float | Tensor, new: Sequence[Tensor]) -> bool:
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

    def finish(self, d: Tensor, step: float | Tensor, new: Sequence[Tensor]) -> bool:
        self.undo()
        if not finite([d, *new]):
            return False
        self.parameters.add(direction_of(d, step, new) * self.scale)
        return True
