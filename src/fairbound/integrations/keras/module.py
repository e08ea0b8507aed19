"""A Keras model as a torch module with one flat parameter, for what takes torch modules: `kkt`, `FairClassifier`."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from fairbound.integrations.keras.forward import make_functional
from fairbound.integrations.keras.validation import (
    check_rows,
    fullest_rows,
    refuse_probabilities,
    refuse_whole_numbers,
    write_weights,
)


class KerasModule(nn.Module):
    """`weights` (n,) are the model's trained weights; the Keras model gets them back with `keras_model()`.

    A copy, or one read from a file, has a Keras model of its own.
    """

    def __init__(self, model: Any, inputs: Any = None, *, as_in_prediction: bool = False) -> None:
        super().__init__()
        # On Keras' torch backend the model is a torch module, which must not be registered here: so within a function.
        self.flat_forward, x = make_functional(model, inputs, as_in_prediction=as_in_prediction)
        self.weights = nn.Parameter(x)
        self._asked = (None if inputs is None else fullest_rows(inputs), as_in_prediction)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits, in the precision of the inputs; computed in the model's."""
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


def copy_classifier(model: Any, rows: Tensor, classes: int) -> KerasModule:
    """A copy of a model that gives logits for so many classes, as a torch module; `rows` are some that it takes."""
    refuse_probabilities(model)
    refuse_whole_numbers(model)
    check_rows(model, tuple(rows.shape))
    made = KerasModule(deepcopy(model), rows)
    outputs = made(rows[:1])
    found = 2 if outputs.ndim == 1 else outputs.shape[-1]
    if outputs.ndim > 2 or found != classes or (classes == 2 and outputs.ndim == 2):
        wanted = "one output a row (a logit)" if classes == 2 else f"{classes} outputs a row, one for each class,"
        raise ValueError(
            f"y has {classes} classes, so {wanted} is wanted; {model.name!r} gives {outputs.shape[1:].numel()}"
        )
    return made
