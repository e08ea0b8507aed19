"""Outputs that another library computes, as a torch function with a derivative.

Torch sees one operation of x and the inputs; its backward pass asks the other library for the pull-back. Under `vmap`
(measurements over several points) the points go one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class At(Protocol):
    """A model at one point and some rows."""

    def outputs(self) -> Tensor:
        """(rows, ...); a last dimension of 1 is dropped."""

    def pull(self, cotangent: Tensor) -> Tensor:
        """The gradient (n,) of the sum of outputs times cotangent."""


class Model(Protocol):
    """What a backend offers."""

    def at(self, x: Tensor, inputs: Tensor) -> At:
        """The model at the flat parameters x (n,). What is handed over may be the tensors' own memory."""


def bridged(model: Model) -> Callable[[Tensor, Tensor], Tensor]:
    """The model's outputs as a function of (x, inputs) that torch differentiates with respect to x."""

    def outputs(x: Tensor, inputs: Tensor) -> Tensor:
        kind = _Transformed if torch._C._are_functorch_transforms_active() else _Plain
        found: Tensor = kind.apply(x, inputs, model)  # type: ignore[no-untyped-call]
        return found

    return outputs


class _Plain(torch.autograd.Function):
    """For a step in ordinary autograd: a function that `vmap` knows takes 70 microseconds longer to call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, inputs: Tensor, model: Model) -> Tensor:
        ctx.save_for_backward(x, inputs)
        ctx.at = model.at(x, inputs)
        found: Tensor = ctx.at.outputs()
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        _ = ctx.saved_tensors  # torch looks whether they were changed in place, and refuses
        return ctx.at.pull(cotangent), None, None


class _Transformed(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, inputs: Tensor, model: Model) -> Tensor:
        return _outputs(model, x, inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.model = inputs[2]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        x, inputs = ctx.saved_tensors
        return _PulledBack.apply(x, inputs, cotangent, ctx.model), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, inputs: Tensor, model: Model) -> tuple[Tensor, int]:
        return _one_by_one(partial(_outputs, model), info.batch_size, in_dims[:2], (x, inputs)), 0


class _PulledBack(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, inputs: Tensor, cotangent: Tensor, model: Model) -> Tensor:
        return _pull(model, x, inputs, cotangent)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> None:
        raise NotImplementedError("second derivatives of a Keras model are not taken through this bridge")

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, inputs: Tensor, cotangent: Tensor, model: Model
    ) -> tuple[Tensor, int]:
        return _one_by_one(partial(_pull, model), info.batch_size, in_dims[:3], (x, inputs, cotangent)), 0


def _outputs(model: Model, x: Tensor, inputs: Tensor) -> Tensor:
    return model.at(x, inputs).outputs()


def _pull(model: Model, x: Tensor, inputs: Tensor, cotangent: Tensor) -> Tensor:
    return model.at(x, inputs).pull(cotangent)


def _one_by_one(
    function: Callable[..., Tensor], size: int, dims: tuple[int | None, ...], given: tuple[Tensor, ...]
) -> Tensor:
    """The function of every entry of a vmapped call."""
    columns = [[tensor] * size if dim is None else tensor.unbind(dim) for tensor, dim in zip(given, dims, strict=True)]
    return torch.stack([function(*entry) for entry in zip(*columns, strict=True)])
