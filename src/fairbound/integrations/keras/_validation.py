"""Checks of a Keras model before it is trained, and its weights as a flat vector."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PROBE_EXAMPLES = 3  # that a model is checked on
PROBE_AMONG = 1_000  # first examples that these are taken from


def check_weights(model: Any) -> None:
    """Check that this is a Keras model with trainable weights."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"fairbound.integrations.keras takes a keras.Model, got {type(model).__name__}; "
            "a torch module goes to fairbound.Constrained or fairbound.make_functional"
        )
    if not model.built or not model.weights:
        raise ValueError(
            f"the model {model.name!r} has no weights yet: start it with keras.Input(shape), call"
            " it once on a few examples, or build(input_shape)"
        )
    if not model.trainable_variables:
        raise ValueError(
            f"every layer of {model.name!r} is frozen (trainable=False), so there is nothing to"
            " train"
        )


def check_trainable(model: Any) -> None:
    """The same, and one input and one output where the model says how many it has."""
    check_weights(model)
    for which in ("inputs", "outputs"):
        tensors = getattr(model, which, None)
        if tensors is not None and len(tensors) != 1:
            raise ValueError(
                f"the model {model.name!r} has {len(tensors)} {which}, and an example here is one"
                " tensor; wrap it in a model with one, or train it in a custom loop"
                " (fairbound.integrations.keras.Constrained)"
            )


def check_inputs(model: Any, shape: Sequence[int]) -> None:
    """Check that there are examples, of the model's input shape where it is known."""
    tensors = getattr(model, "inputs", None)
    expected = tuple(tensors[0].shape[1:]) if tensors else tuple(shape[1:])
    fits = len(expected) == len(shape) - 1 and all(
        a in (None, b) for a, b in zip(expected, shape[1:], strict=False)
    )
    if not shape[0] or not fits:
        raise ValueError(
            f"{model.name!r} takes examples of shape {expected}, got X of shape {tuple(shape)}"
        )


def numpy_of(values: Any) -> NDArray[Any]:
    """Values of any backend as numpy."""
    found: NDArray[Any] = keras.ops.convert_to_numpy(values)
    return found


def flat_dtype(model: Any) -> torch.dtype:
    """float64 where a trainable weight is, else float32."""
    wide = any(str(variable.dtype) == "float64" for variable in model.trainable_variables)
    return torch.float64 if wide else torch.float32


def flat_weights(model: Any) -> Tensor:
    """The present trainable weights, (n,), in the order of `model.trainable_variables`."""
    dtype = str(flat_dtype(model)).removeprefix("torch.")
    parts = [
        numpy_of(variable.value).astype(dtype).reshape(-1) for variable in model.trainable_variables
    ]
    return torch.from_numpy(np.concatenate(parts))


def write_weights(model: Any, x: Tensor) -> None:
    """Write flat parameters (n,) into the model."""
    sizes = [math.prod(variable.shape) for variable in model.trainable_variables]
    if x.shape != (sum(sizes),):
        raise ValueError(
            f"{model.name!r} trains {sum(sizes)} weights, got a vector of shape {tuple(x.shape)}"
        )
    for variable, part in zip(
        model.trainable_variables, x.detach().cpu().split(sizes), strict=True
    ):
        variable.assign(part.reshape(tuple(variable.shape)).numpy())


def probe_examples(inputs: Any) -> NDArray[Any]:
    """A few examples with the most nonzero entries: with zeros, outputs may not depend on the
    weights."""
    first = np.asarray(inputs[:PROBE_AMONG])
    entries = np.count_nonzero(first.reshape(len(first), -1), axis=1)
    found: NDArray[Any] = first[np.argsort(-entries, kind="stable")[:PROBE_EXAMPLES]]
    return found


def synthetic_examples(model: Any) -> NDArray[Any]:
    """A few random examples of the model's input shape."""
    tensors = getattr(model, "inputs", None)
    if not tensors:
        raise ValueError(
            f"{model.name!r} has no known input shape (a subclass of keras.Model); pass inputs=, a"
            " few examples"
        )
    shape = (PROBE_EXAMPLES, *(1 if size is None else size for size in tensors[0].shape[1:]))
    dtype = str(tensors[0].dtype)
    values = np.random.default_rng(0).standard_normal(shape)
    return values.astype(dtype) if "float" in dtype else np.zeros(shape, dtype)


def changed_by_training(model: Any, examples: NDArray[Any]) -> list[str]:
    """The layers that a call in training mode changes (moving means, seeds of dropout), or whose
    outputs differ."""
    trained = [variable.value for variable in model.trainable_variables]
    frozen = [variable.value for variable in model.non_trainable_variables]
    outputs, after = model.stateless_call(
        trained, frozen, examples, **in_mode(model, training=True)
    )
    changed = [
        variable
        for variable, new in zip(model.non_trainable_variables, after, strict=True)
        if not np.array_equal(numpy_of(variable.value), numpy_of(new))
    ]
    if not changed and same_outputs(
        numpy_of(outputs), numpy_of(model(examples, **in_mode(model, training=False)))
    ):
        return []
    seeds = [variable for variable in model.non_trainable_variables if "seed" in variable.path]
    return list(dict.fromkeys(_owner(model, variable) for variable in changed or seeds)) or [
        "its outputs"
    ]


def same_outputs(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two computations of outputs agree, up to rounding in half precision."""
    a, b = (np.nan_to_num(values.astype(np.float64)) for values in (a, b))
    return bool(np.abs(a - b).max(initial=0.0) <= 0.05 * np.abs(b).max(initial=0.0) + 1e-6)


def _owner(layer: Any, variable: Any) -> str:
    """The innermost layer that has the variable: its name and class."""
    for inner in getattr(layer, "layers", []):
        if any(own is variable for own in inner.variables):
            return _owner(inner, variable)
    return f"{layer.name} ({type(layer).__name__})"


def refuse_probabilities(model: Any) -> None:
    """Refuse a last layer that returns probabilities, where that can be seen: losses here take
    logits."""
    layers = getattr(model, "layers", None)
    if not layers:
        return
    last = layers[-1]
    activation = getattr(last, "activation", None)
    name = (
        "softmax" if isinstance(last, keras.layers.Softmax) else getattr(activation, "__name__", "")
    )
    if name in ("sigmoid", "softmax"):
        raise ValueError(
            f"the last layer {last.name!r} ends in {name}, and logits are needed: remove the"
            f" activation (keras.ops.{name}(model(X)) are the probabilities then)"
        )


def refuse_integer_inputs(model: Any) -> None:
    """Refuse a model of integers (an embedding), which cannot take standardized columns."""
    tensors = getattr(model, "inputs", None)
    if tensors and "float" not in str(tensors[0].dtype):
        raise ValueError(
            f"{model.name!r} takes {tensors[0].dtype} inputs, and FairClassifier standardizes its"
            " columns; train it with fairbound.integrations.keras.fit"
        )


def in_mode(model: Any, *, training: bool) -> dict[str, bool]:
    """`training=` for a model whose `call` takes it; a subclass need not."""
    taken = inspect.signature(model.call).parameters
    passes_on = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values())
    return {"training": training} if "training" in taken or passes_on else {}
