"""A Keras model's outputs and their vector-Jacobian product, computed by JAX; every batch size is
compiled once."""

from __future__ import annotations

import math
from typing import Any

import jax
import torch
from torch import Tensor

from fairbound.integrations.keras._validation import in_mode


class JaxModel:
    """A Keras model on JAX as a function of flat parameters."""

    def __init__(self, model: Any, n: int, dtype: torch.dtype) -> None:
        if dtype == torch.float64 and not getattr(jax.config, "jax_enable_x64", False):
            raise ValueError(
                "the model is float64, which JAX rounds to float32; set JAX_ENABLE_X64=1 before it"
                " loads"
            )
        self.model = model
        self.inference = in_mode(model, training=False)
        self.dtype = str(dtype).removeprefix("torch.")
        self.shapes = [tuple(variable.shape) for variable in model.trainable_variables]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self._forward = jax.jit(self._call)
        self._backward = jax.jit(self._pull_back)

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        return _to_torch(self._forward(self._frozen(), _to_jax(x), _to_jax(inputs)))

    def vjp(self, x: Tensor, inputs: Tensor, cotangent: Tensor) -> Tensor:
        return _to_torch(
            self._backward(self._frozen(), _to_jax(x), _to_jax(inputs), _to_jax(cotangent))
        )

    def _frozen(self) -> list[Any]:
        # their present values
        return [variable.value for variable in self.model.non_trainable_variables]

    def _call(self, frozen: Any, flat: Any, inputs: Any) -> Any:
        weights, start = [], 0
        for size, shape, variable in zip(
            self.sizes, self.shapes, self.model.trainable_variables, strict=True
        ):
            weights.append(flat[start : start + size].reshape(shape).astype(variable.dtype))
            start += size
        found, _ = self.model.stateless_call(weights, frozen, inputs, **self.inference)
        found = found.astype(self.dtype)
        return found.squeeze(-1) if found.ndim > 1 and found.shape[-1] == 1 else found

    def _pull_back(self, frozen: Any, flat: Any, inputs: Any, cotangent: Any) -> Any:
        _, vjp = jax.vjp(lambda point: self._call(frozen, point, inputs), flat)
        return vjp(cotangent)[0]


def _to_jax(values: Tensor) -> Any:
    return jax.numpy.asarray(values.detach().numpy())


def _to_torch(values: Any) -> Tensor:
    return torch.tensor(jax.device_get(values))
