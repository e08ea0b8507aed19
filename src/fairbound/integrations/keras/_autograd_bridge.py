"""Outputs that another library computes, as a torch function with a derivative.

To torch this is one operation of x and the inputs, whose backward pass asks the other library for
the vector-Jacobian product. Under `vmap` (evaluations at several points) the points are computed
one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class BackendModel(Protocol):
    """A model of flat parameters x (n,), as a backend other than torch computes it."""

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """(B, ...); a last dimension of 1 is dropped."""

    def vjp(self, x: Tensor, inputs: Tensor, cotangent: Tensor) -> Tensor:
        """The gradient (n,) of the sum of outputs times cotangent."""


def differentiable(model: BackendModel) -> Callable[[Tensor, Tensor], Tensor]:
    """The model's outputs as a function of (x, inputs) that torch differentiates with respect to
    x."""

    def outputs(x: Tensor, inputs: Tensor) -> Tensor:
        found: Tensor = _Outputs.apply(x, inputs, model)  # type: ignore[no-untyped-call]
        return found

    return outputs


class _Outputs(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, inputs: Tensor, model: BackendModel) -> Tensor:
        return model.outputs(x, inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.model = inputs[2]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        x, inputs = ctx.saved_tensors  # torch raises if they were changed in place
        return _VJP.apply(x, inputs, cotangent, ctx.model), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, inputs: Tensor, model: BackendModel
    ) -> tuple[Tensor, int]:
        return _one_by_one(model.outputs, info.batch_size, in_dims[:2], (x, inputs)), 0


class _VJP(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, inputs: Tensor, cotangent: Tensor, model: BackendModel) -> Tensor:
        return model.vjp(x, inputs, cotangent)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> None:
        raise NotImplementedError(
            "there are no second derivatives of a Keras model on TensorFlow or JAX"
        )

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        x: Tensor,
        inputs: Tensor,
        cotangent: Tensor,
        model: BackendModel,
    ) -> tuple[Tensor, int]:
        return _one_by_one(model.vjp, info.batch_size, in_dims[:3], (x, inputs, cotangent)), 0


def _one_by_one(
    function: Callable[..., Tensor],
    size: int,
    dims: tuple[int | None, ...],
    given: tuple[Tensor, ...],
) -> Tensor:
    """The function at every entry of a vmapped call."""
    columns = [
        [tensor] * size if dim is None else tensor.unbind(dim)
        for tensor, dim in zip(given, dims, strict=True)
    ]
    return torch.stack([function(*entry) for entry in zip(*columns, strict=True)])
