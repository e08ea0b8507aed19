"""A Keras model as a torch module with one flat parameter, for `report_kkt`, `FairClassifier` and
other users."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from fairbound.integrations.keras._forward import make_functional
from fairbound.integrations.keras._validation import (
    check_inputs,
    probe_examples,
    refuse_integer_inputs,
    refuse_probabilities,
    write_weights,
)


class KerasModule(nn.Module):
    """`weights` (n,) are the model's trainable weights; `keras_model()` writes them back into the
    Keras model.

    A copy, and one loaded from a file, has its own Keras model.
    """

    def __init__(self, model: Any, inputs: Any = None, *, as_in_prediction: bool = False) -> None:
        super().__init__()
        # The model is inside a function: on Keras' torch backend it is a torch module, and must not
        # become a submodule.
        self.flat_forward, x = make_functional(model, inputs, as_in_prediction=as_in_prediction)
        self.weights = nn.Parameter(x)
        self._asked = (None if inputs is None else probe_examples(inputs), as_in_prediction)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits, in the precision of the inputs; computed in that of the model."""
        own = self.flat_forward.dtype
        given = inputs.to(own) if inputs.is_floating_point() else inputs
        outputs = self.flat_forward(self.weights.to(own), given)
        return outputs.to(inputs.dtype) if inputs.is_floating_point() else outputs

    def keras_model(self) -> Any:
        """The Keras model, with these weights."""
        write_weights(self.flat_forward.model, self.weights)
        return self.flat_forward.model

    def __reduce__(self) -> Any:
        return _rebuilt, (self.keras_model(), self.weights.detach(), *self._asked)


def _rebuilt(model: Any, weights: Tensor, inputs: Any, as_in_prediction: bool) -> KerasModule:
    made = KerasModule(model, inputs, as_in_prediction=as_in_prediction)
    made.weights = nn.Parameter(weights)
    return made


def as_module(model: Any, inputs: Any = None, *, as_in_prediction: bool = False) -> KerasModule:
    """The model as a torch module; see `KerasForward` for the arguments.

    >>> import keras, torch
    >>> module = as_module(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    >>> module(torch.zeros(4, 2)).shape, module.weights.shape
    (torch.Size([4]), torch.Size([3]))
    """
    return KerasModule(model, inputs, as_in_prediction=as_in_prediction)


def copy_classifier(model: Any, inputs: Tensor, classes: int) -> KerasModule:
    """A copy of a model that returns logits of so many classes, as a torch module."""
    refuse_probabilities(model)
    refuse_integer_inputs(model)
    check_inputs(model, tuple(inputs.shape))
    made = KerasModule(deepcopy(model), inputs)
    outputs = made(inputs[:1])
    found = 2 if outputs.ndim == 1 else outputs.shape[-1]
    if outputs.ndim > 2 or found != classes or (classes == 2 and outputs.ndim == 2):
        logits = (
            "one output per example (a logit)"
            if classes == 2
            else f"{classes} outputs per example, one per class"
        )
        raise ValueError(
            f"y has {classes} classes, so the model must return {logits}; {model.name!r} returns "
            f"{outputs.shape[1:].numel()}"
        )
    return made
