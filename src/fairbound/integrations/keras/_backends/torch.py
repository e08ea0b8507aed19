"""A Keras model on its torch backend: torch differentiates it as it stands."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairbound.integrations.keras._validation import in_mode


class TorchModel:
    """A Keras model on torch as a function of flat parameters.

    `torch.func.functional_call` would have no effect, since Keras reads its own variables:
    `stateless_call` replaces them.
    """

    def __init__(self, model: Any, n: int, dtype: torch.dtype) -> None:
        self.model = model
        self.inference = in_mode(model, training=False)
        self.dtype = dtype
        self.shapes = [torch.Size(variable.shape) for variable in model.trainable_variables]
        self.sizes = [shape.numel() for shape in self.shapes]

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """The model's outputs at the flat parameters x (n,); a last dimension of 1 is dropped."""
        variables = self.model.trainable_variables
        parts = zip(x.split(self.sizes), self.shapes, variables, strict=True)
        weights = [part.view(shape).to(variable.value.dtype) for part, shape, variable in parts]
        answer, _ = self.model.stateless_call(
            weights, self.model.non_trainable_variables, inputs, **self.inference
        )
        found: Tensor = answer.to(self.dtype)
        return found.squeeze(-1) if found.ndim > 1 and found.shape[-1] == 1 else found
