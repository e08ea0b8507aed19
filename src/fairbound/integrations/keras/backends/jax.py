"""A Keras model's outputs and their pull-back, computed by JAX; every number of rows is compiled once."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import torch
from torch import Tensor

from fairbound.integrations.keras.validation import in_mode


class JaxModel:
    """A Keras model on JAX as a function of flat parameters."""

    def __init__(self, model: Any, n: int, dtype: torch.dtype) -> None:
        if dtype == torch.float64 and not getattr(jax.config, "jax_enable_x64", False):
            raise ValueError("the model is float64, which JAX rounds to float32; set JAX_ENABLE_X64=1 before it loads")
        self.model = model
        self.predicting = in_mode(model, training=False)
        self.dtype = str(dtype).removeprefix("torch.")
        self.shapes = [tuple(variable.shape) for variable in model.trainable_variables]
        self.cuts = [math.prod(shape) for shape in self.shapes]
        self._forward = jax.jit(self._call)
        self._backward = jax.jit(self._pull)

    def at(self, x: Tensor, inputs: Tensor) -> JaxAt:
        fixed = [variable.value for variable in self.model.non_trainable_variables]  # as they are now
        return JaxAt(self._forward, self._backward, (fixed, _to_jax(x), _to_jax(inputs)))

    def _call(self, fixed: Any, flat: Any, rows: Any) -> Any:
        weights, start = [], 0
        for size, shape, variable in zip(self.cuts, self.shapes, self.model.trainable_variables, strict=True):
            weights.append(flat[start : start + size].reshape(shape).astype(variable.dtype))
            start += size
        found, _ = self.model.stateless_call(weights, fixed, rows, **self.predicting)
        found = found.astype(self.dtype)
        return found.squeeze(-1) if found.ndim > 1 and found.shape[-1] == 1 else found

    def _pull(self, fixed: Any, flat: Any, rows: Any, cotangent: Any) -> Any:
        _, pull = jax.vjp(lambda point: self._call(fixed, point, rows), flat)
        return pull(cotangent)[0]


class JaxAt(NamedTuple):
    """The model at a point and some rows, both handed over once."""

    forward: Any
    backward: Any
    given: tuple[Any, Any, Any]  # what is not trained, the point (n,), the rows

    def outputs(self) -> Tensor:
        return _to_torch(self.forward(*self.given))

    def pull(self, cotangent: Tensor) -> Tensor:
        return _to_torch(self.backward(*self.given, _to_jax(cotangent)))


def _to_jax(values: Tensor) -> Any:
    return jax.numpy.asarray(values.detach().numpy())


def _to_torch(values: Any) -> Tensor:
    return torch.tensor(jax.device_get(values))
