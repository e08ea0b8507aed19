"""A Keras model as a function of flat parameters, whatever its backend; as `training.functional` for torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import torch
from torch import Tensor

from fairbound.integrations.keras.autograd_bridge import At, bridged
from fairbound.integrations.keras.validation import (
    changed_by_training,
    check_trainable,
    flat_dtype,
    flat_weights,
    fullest_rows,
    in_mode,
    made_up_rows,
    numpy_of,
    same_outputs,
)

Outputs = Callable[[Tensor, Tensor], Tensor]
BACKENDS = ("tensorflow", "torch", "jax")


class KerasForward:
    """`forward(x, inputs)` of a Keras model whose trained weights are the slices of the flat vector x: (n,).

    Torch tensors go in and come out, and torch differentiates: loss, constraints and method stay what they are. Frozen
    layers and all that is not trained are read as they are. The output's last dimension is dropped where it is 1.

    Args:
        model: a built Keras model with one input and one output.
        inputs: a few rows that it takes, for a model that does not say what that is (a subclass of keras.Model).
        as_in_prediction: run layers that behave otherwise in training (BatchNormalization, Dropout) as in prediction;
            without it a model that has such layers is refused.
    """

    stacks = False  # runs go one after another: what TensorFlow computes cannot be vmapped

    def __init__(self, model: Any, inputs: Any = None, *, as_in_prediction: bool = False) -> None:
        check_trainable(model)
        self.model = model
        self.dtype = flat_dtype(model)
        x = flat_weights(model)
        self.n = x.numel()
        self._outputs, self.at = _on_backend(model, self.n, self.dtype)
        rows = made_up_rows(model) if inputs is None else fullest_rows(inputs)
        if not as_in_prediction:
            self._refuse_state(rows)
        self._try(x, rows)

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        if x.shape != (self.n,) or x.dtype != self.dtype:
            raise ValueError(
                f"{self.model.name!r} trains {self.n} weights as {self.dtype}, got x of shape {tuple(x.shape)} and "
                f"{x.dtype}"
            )
        found: Tensor = self._outputs(x, inputs)
        return found

    def _refuse_state(self, rows: Any) -> None:
        changed = changed_by_training(self.model, rows)
        if changed:
            raise ValueError(
                f"in training {', '.join(changed[:4])} of {self.model.name!r} keeps state or draws random numbers, "
                "which a function of the weights cannot; pass as_in_prediction=True to train with such layers as they "
                "predict, freeze them (BatchNormalization: trainable=False), or use a loop of your own "
                "(fairbound.integrations.keras.Constrained)"
            )

    def _try(self, x: Tensor, rows: Any) -> None:
        """Whether this is the model's own function, and x is what moves it."""
        inputs = torch.from_numpy(np.ascontiguousarray(rows))
        with torch.no_grad():
            here, there = self(x, inputs), self(x + 0.1 * x.abs() + 0.01, inputs)
        own = numpy_of(self.model(rows, **in_mode(self.model, training=False))).reshape(here.shape)
        if not same_outputs(here.numpy(), own):
            raise ValueError(
                f"{self.model.name!r} gives other outputs through stateless_call than by itself; a layer keeps tensors "
                "that Keras does not know of (use self.add_weight)"
            )
        if torch.equal(here, there):
            raise ValueError(
                f"the outputs of {self.model.name!r} do not move with its weights; a layer keeps tensors that Keras "
                "does not know of (use self.add_weight), or nothing trained reaches the output"
            )


def _on_backend(model: Any, n: int, dtype: torch.dtype) -> tuple[Outputs, Callable[[Tensor, Tensor], At] | None]:
    """The outputs as a torch function; and the model at a point, where another library than torch computes it."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from fairbound.integrations.keras.backends.tensorflow import TensorFlowModel

        on_tensorflow = TensorFlowModel(model, n, dtype)
        return bridged(on_tensorflow), on_tensorflow.at
    if backend == "jax":
        from fairbound.integrations.keras.backends.jax import JaxModel

        on_jax = JaxModel(model, n, dtype)
        return bridged(on_jax), on_jax.at
    if backend == "torch":
        from fairbound.integrations.keras.backends.torch import TorchModel

        return TorchModel(model, n, dtype).outputs, None
    raise ValueError(
        f"Keras runs on {backend!r}; fairbound.integrations.keras knows {', '.join(BACKENDS)} (KERAS_BACKEND)"
    )


def make_functional(model: Any, inputs: Any = None, *, as_in_prediction: bool = False) -> tuple[KerasForward, Tensor]:
    """The model's forward function and its present weights, flat: (n,). See `KerasForward`.

    >>> model = keras.Sequential([keras.Input((9,)), keras.layers.Dense(1)])
    >>> forward, x = make_functional(model)
    >>> x.shape, forward(x, torch.zeros(4, 9)).shape
    (torch.Size([10]), torch.Size([4]))
    """
    return KerasForward(model, inputs, as_in_prediction=as_in_prediction), flat_weights(model)
