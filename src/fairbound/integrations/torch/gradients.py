"""Gradients of a mini-batch into `.grad`: three ways, by what a method does with them.

- `InPlace`: the method follows one gradient (SGD, penalties, descent-ascent). It only says with which weights; one
  backward pass then writes into `.grad` what plain training would write there. No vector of the model's size is made.
- `Flat`: the method combines the gradient with vectors of its own (SSL-ALM, switching). The backward pass goes
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
from torch.autograd import graph

from fairbound.integrations.torch.distributed import Processes
from fairbound.integrations.torch.flat_params import Held, Parameters


def _public_backward(tensors: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> None:
    torch.autograd.backward(tensors, weights)


def _engine_backward(tensors: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> None:
    graph._engine_run_backward(tensors, weights, False, False, (), allow_unreachable=True, accumulate_grad=True)


# `torch.autograd.backward` first looks whether the weights fit: a tenth of a small model's step. Ours are made to fit,
# so what it calls then is called at once, where this torch has it.
run_backward = _engine_backward if hasattr(graph, "_engine_run_backward") else _public_backward


class GradientWriter(ABC):
    """How one step gets its gradients and leaves its direction."""

    def __init__(
        self,
        parameters: Parameters,
        processes: Processes,
        scaler: torch.amp.GradScaler | None = None,
        share: float = 1.0,
    ) -> None:
        self.parameters = parameters
        self.processes = processes
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        # Asked as `scaler.scale(loss)` asks, which makes a fresh scaler ready for its unscale_ and step.
        self.scale = 1.0 if scaler is None else float(scaler.scale(parameters.one))
        self.share = share
        self.plain = processes.alone and scaler is None

    @abstractmethod
    def point(self) -> Tensor:
        """The x that the method sees."""

    @abstractmethod
    def pull(self, tensors: list[Tensor], weights: list[Tensor]) -> Tensor:
        """The gradient of the weighted sum of a mini-batch's values."""

    @abstractmethod
    def finish(self, d: Tensor, step: float | Tensor, new: Sequence[Tensor]) -> bool:
        """Leave d / -step in `.grad`; False, and nothing changed, if it or the new state's tensors are not finite."""

    @abstractmethod
    def undo(self) -> None:
        """Leave `.grad` as it was."""

    def passed(self, tensors: list[Tensor], weights: list[Tensor], factor: float) -> None:
        """One backward pass into `.grad`."""
        factor *= self.processes.size  # DistributedDataParallel takes the mean over them, and the sum is wanted
        if factor != 1.0:
            weights = [weight * factor for weight in weights]
        for tensor in tensors:
            if not tensor.requires_grad:
                raise ValueError(
                    "the losses, or the outputs that a limit reads, carry no graph to differentiate; compute them from "
                    "the model outside torch.no_grad(), without .detach() or .item()"
                )
        try:
            run_backward(tuple(tensors), tuple(weights))
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise ValueError(
                "the graph of these losses was used before: by another backward(), or by a method that takes several "
                "gradients of one mini-batch; use fair.backward_closure(evaluate) for such a method"
            ) from error


def _quotient(d: Tensor, step: float | Tensor) -> Tensor:
    """d / -step; 0 for a step of 0, whose d is 0."""
    if isinstance(step, Tensor):
        return torch.where(step == 0, torch.zeros_like(d), d / -step)
    return d / -step if step else torch.zeros_like(d)


class LazyGradient:
    """The gradient of a method that follows one, and its multiples: nothing reads them, so they are not computed."""

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
    """For a method that follows one gradient: x is a stand-in of one number, the gradient is left unread."""

    before: Held | None = None  # what `.grad` held

    def point(self) -> Tensor:
        self.held: list[tuple[list[Tensor], list[Tensor]]] = []
        self.before = None
        return self.parameters.stand_in

    def pull(self, tensors: list[Tensor], weights: list[Tensor]) -> Tensor:
        self.held.append((tensors, weights))
        return LAZY  # type: ignore[return-value]

    def finish(self, d: Tensor, step: float | Tensor, new: Sequence[Tensor]) -> bool:
        self.open()
        for tensors, weights in self.held:
            self.passed(tensors, weights, self.scale * self.share)
        self.held = []  # the graph of the losses
        if not self.before and not new and self.plain and self.parameters.finite_gradients():
            return True  # the commonest end
        return self.close(new)

    def open(self) -> None:
        """Put aside what `.grad` holds; not where DistributedDataParallel reduces what it accumulates."""
        if self.processes.size == 1:
            self.before = self.parameters.stash_grads()

    def close(self, new: Sequence[Tensor]) -> bool:
        """Look at the gradients and add what was put aside; False, and `.grad` as it was, if something is not finite.

        Reduced gradients are the same in all processes, so each judges alone. There `.grad` is emptied, since what it
        had accumulated is lost with what is not finite.
        """
        looks = self.scaler is None and not self.processes.out_of_step
        if not self.parameters.finite(list(new)) or (looks and not self.parameters.finite_gradients()):
            self.parameters.stash_grads()
            self.undo()
            return False
        if self.before:
            self.parameters.join(self.before)
            self.before = None
        return True

    def undo(self) -> None:
        self.held = []  # the graph of the losses
        if self.before is not None:
            self.parameters.restore_grads(self.before)


class Flat(GradientWriter):
    """For a method with vectors of the model's size."""

    pulled = False  # whether `.grad` has the gradient of another mini-batch of this step

    def point(self) -> Tensor:
        self.held, self.pulled = self.parameters.stash_grads(), False
        return self.parameters.flat()

    def pull(self, tensors: list[Tensor], weights: list[Tensor]) -> Tensor:
        if self.pulled:
            self.parameters.stash_grads()
        self.pulled = True
        self.passed(tensors, weights, self.scale)
        return self.gradient()

    def gradient(self) -> Tensor:
        found = self.parameters.gradient()
        return found if self.scale == 1.0 else found / self.scale

    def finish(self, d: Tensor, step: float | Tensor, new: Sequence[Tensor]) -> bool:
        if self.finite(d, new):
            direction = _quotient(d, step)
            if any(direction is leaf for leaf in new):
                direction = direction.clone()  # `.grad` is clipped and zeroed in place
            self.parameters.write(_scaled(direction, self.scale * self.share), self.held)
            self.held = []
            return True
        if self.scale == 1.0:
            self.undo()
        return False  # a scaler must see the infinities that it made, to lower its scale

    def finite(self, d: Tensor, new: Sequence[Tensor]) -> bool:
        return self.parameters.finite([d, *new])

    def undo(self) -> None:
        self.parameters.restore_grads(self.held)


class Closed(Flat):
    """For a method that takes several gradients of a mini-batch."""

    def pull(self, tensors: list[Tensor], weights: list[Tensor]) -> Tensor:
        return self.parameters.jacobian_row(tensors, weights)

    def finish(self, d: Tensor, step: float | Tensor, new: Sequence[Tensor]) -> bool:
        self.undo()
        if not self.finite(d, new):
            return False
        self.parameters.add(_scaled(_quotient(d, step), self.share))
        return True


def _scaled(values: Tensor, factor: float) -> Tensor:
    return values if factor == 1.0 else values * factor
