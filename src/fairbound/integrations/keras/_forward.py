"""A Keras model as a function of flat parameters on any backend; as `training.functional` for
torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import torch
from torch import Tensor

from fairbound.integrations.keras._autograd_bridge import differentiable
from fairbound.integrations.keras._validation import (
    changed_by_training,
    check_trainable,
    flat_dtype,
    flat_weights,
    in_mode,
    numpy_of,
    probe_examples,
    same_outputs,
    synthetic_examples,
)

Outputs = Callable[[Tensor, Tensor], Tensor]
BACKENDS = ("tensorflow", "torch", "jax")


class KerasForward:
    """`forward(x, inputs)` of a Keras model whose trainable weights are the slices of the flat
    vector x: (n,).

    It takes and returns torch tensors, and torch differentiates it: loss, constraints and algorithm
    stay the same. Frozen layers are used with their present values. The output's last dimension is
    dropped where it is 1.

    Args:
        model: a built Keras model with one input and one output.
        inputs: a few examples, for a model without a known input shape (a subclass of keras.Model).
        as_in_prediction: run layers that behave differently in training (BatchNormalization,
            Dropout) as in prediction; without it a model that has such layers is refused.
    """

    # several runs are computed one after another: what TensorFlow computes cannot be vmapped
    stacks = False

    def __init__(self, model: Any, inputs: Any = None, *, as_in_prediction: bool = False) -> None:
        check_trainable(model)
        self.model = model
        self.dtype = flat_dtype(model)
        x = flat_weights(model)
        self.n = x.numel()
        self._outputs = _on_backend(model, self.n, self.dtype)
        examples = synthetic_examples(model) if inputs is None else probe_examples(inputs)
        if not as_in_prediction:
            self._refuse_state(examples)
        self._check_outputs(x, examples)

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        if x.shape != (self.n,) or x.dtype != self.dtype:
            raise ValueError(
                f"{self.model.name!r} trains {self.n} weights as {self.dtype}, got x of shape"
                f" {tuple(x.shape)} and {x.dtype}"
            )
        found: Tensor = self._outputs(x, inputs)
        return found

    def _refuse_state(self, examples: Any) -> None:
        changed = changed_by_training(self.model, examples)
        if changed:
            raise ValueError(
                f"in training {', '.join(changed[:4])} of {self.model.name!r} keeps state or draws"
                " random numbers, which a function of the weights cannot; pass"
                " as_in_prediction=True to train with such layers as they predict, freeze them"
                " (BatchNormalization: trainable=False), or use a custom loop"
                " (fairbound.integrations.keras.Constrained)"
            )

    def _check_outputs(self, x: Tensor, examples: Any) -> None:
        """Check that this computes the model's outputs, and that they depend on x."""
        inputs = torch.from_numpy(np.ascontiguousarray(examples))
        with torch.no_grad():
            here, there = self(x, inputs), self(x + 0.1 * x.abs() + 0.01, inputs)
        own = numpy_of(self.model(examples, **in_mode(self.model, training=False))).reshape(
            here.shape
        )
        if not same_outputs(here.numpy(), own):
            raise ValueError(
                f"{self.model.name!r} returns other outputs from stateless_call than from a call; a"
                " layer has tensors that Keras does not know of (use self.add_weight)"
            )
        if torch.equal(here, there):
            raise ValueError(
                f"the outputs of {self.model.name!r} do not depend on its trainable weights; a"
                " layer has tensors that Keras does not know of (use self.add_weight), or no"
                " trainable layer reaches the output"
            )


def _on_backend(model: Any, n: int, dtype: torch.dtype) -> Outputs:
    """The outputs as a torch function of (x, inputs)."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from fairbound.integrations.keras._backends.tensorflow import TensorFlowModel

        return differentiable(TensorFlowModel(model, n, dtype))
    if backend == "jax":
        from fairbound.integrations.keras._backends.jax import JaxModel

        return differentiable(JaxModel(model, n, dtype))
    if backend == "torch":
        from fairbound.integrations.keras._backends.torch import TorchModel

        return TorchModel(model, n, dtype).outputs
    raise ValueError(
        f"Keras runs on {backend!r}; fairbound.integrations.keras supports {', '.join(BACKENDS)}"
        " (KERAS_BACKEND)"
    )


def make_functional(
    model: Any, inputs: Any = None, *, as_in_prediction: bool = False
) -> tuple[KerasForward, Tensor]:
    """The model's forward function and its present weights, flat: (n,). See `KerasForward`.

    >>> model = keras.Sequential([keras.Input((9,)), keras.layers.Dense(1)])
    >>> forward, x = make_functional(model)
    >>> x.shape, forward(x, torch.zeros(4, 9)).shape
    (torch.Size([10]), torch.Size([4]))
    """
    return KerasForward(model, inputs, as_in_prediction=as_in_prediction), flat_weights(model)
