"""What must be known of a Keras model before it is trained: sentences where it cannot be."""

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

FEW = 3  # rows that a model is tried on


def check_weights(model: Any) -> None:
    """A Keras model with something to train."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"fairbound.integrations.keras takes a keras.Model, got {type(model).__name__}; "
            "a torch module goes to fairbound itself"
        )
    if not model.built or not model.weights:
        raise ValueError(
            f"the model {model.name!r} has no weights yet: start it with keras.Input(shape), call it once on a few "
            "rows, or build(input_shape)"
        )
    if not model.trainable_variables:
        raise ValueError(f"every layer of {model.name!r} is frozen (trainable=False), so there is nothing to train")


def check_trainable(model: Any) -> None:
    """The same, with one tensor in and one out as far as the model says."""
    check_weights(model)
    for which in ("inputs", "outputs"):
        tensors = getattr(model, which, None)
        if tensors is not None and len(tensors) != 1:
            raise ValueError(
                f"the model {model.name!r} has {len(tensors)} {which}, and a row here is one tensor; "
                "put it into a model with one of them, or train it in a loop of your own "
                "(fairbound.integrations.keras.Constrained)"
            )


def check_rows(model: Any, shape: Sequence[int]) -> None:
    """There are rows, of the shape that the model takes where it says so."""
    tensors = getattr(model, "inputs", None)
    wanted = tuple(tensors[0].shape[1:]) if tensors else tuple(shape[1:])
    fits = len(wanted) == len(shape) - 1 and all(a in (None, b) for a, b in zip(wanted, shape[1:], strict=False))
    if not shape[0] or not fits:
        raise ValueError(f"{model.name!r} takes rows of shape {wanted}, got X of shape {tuple(shape)}")


def numpy_of(values: Any) -> NDArray[Any]:
    """Values of any backend as numpy."""
    found: NDArray[Any] = keras.ops.convert_to_numpy(values)
    return found


def flat_dtype(model: Any) -> torch.dtype:
    """float64 where a trained weight is, else float32."""
    wide = any(str(variable.dtype) == "float64" for variable in model.trainable_variables)
    return torch.float64 if wide else torch.float32


def flat_weights(model: Any) -> Tensor:
    """The trained weights as they are now, (n,), in the order of `model.trainable_variables`."""
    dtype = str(flat_dtype(model)).removeprefix("torch.")
    parts = [numpy_of(variable.value).astype(dtype).reshape(-1) for variable in model.trainable_variables]
    return torch.from_numpy(np.concatenate(parts))


def write_weights(model: Any, x: Tensor) -> None:
    """Write flat parameters (n,) into the model."""
    sizes = [math.prod(variable.shape) for variable in model.trainable_variables]
    if x.shape != (sum(sizes),):
        raise ValueError(f"{model.name!r} trains {sum(sizes)} weights, got a vector of shape {tuple(x.shape)}")
    for variable, part in zip(model.trainable_variables, x.detach().cpu().split(sizes), strict=True):
        variable.assign(part.reshape(tuple(variable.shape)).numpy())


def fullest_rows(inputs: Any) -> NDArray[Any]:
    """Of the first rows a few with the most entries that are not zero: rows of zeros may not show what weights do."""
    first = np.asarray(inputs[:1_000])
    entries = np.count_nonzero(first.reshape(len(first), -1), axis=1)
    found: NDArray[Any] = first[np.argsort(-entries, kind="stable")[:FEW]]
    return found


def made_up_rows(model: Any) -> NDArray[Any]:
    """A few rows of the shape that the model says it takes."""
    tensors = getattr(model, "inputs", None)
    if not tensors:
        raise ValueError(
            f"{model.name!r} does not say what it takes (a subclass of keras.Model); pass inputs=, a few of its rows"
        )
    shape = (FEW, *(1 if size is None else size for size in tensors[0].shape[1:]))
    kind = str(tensors[0].dtype)
    rows = np.random.default_rng(0).standard_normal(shape)
    return rows.astype(kind) if "float" in kind else np.zeros(shape, kind)


def changed_by_training(model: Any, rows: NDArray[Any]) -> list[str]:
    """The layers that a call in training mode changes (moving means, seeds of dropout), or that give other outputs."""
    trained = [variable.value for variable in model.trainable_variables]
    fixed = [variable.value for variable in model.non_trainable_variables]
    outputs, after = model.stateless_call(trained, fixed, rows, **in_mode(model, training=True))
    changed = [
        variable
        for variable, new in zip(model.non_trainable_variables, after, strict=True)
        if not np.array_equal(numpy_of(variable.value), numpy_of(new))
    ]
    if not changed and same_outputs(numpy_of(outputs), numpy_of(model(rows, **in_mode(model, training=False)))):
        return []
    seeds = [variable for variable in model.non_trainable_variables if "seed" in variable.path]
    return list(dict.fromkeys(_owner(model, variable) for variable in changed or seeds)) or ["its outputs"]


def same_outputs(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two ways to compute outputs agree, to what half precision allows: it tells a function from rounding."""
    a, b = (np.nan_to_num(values.astype(np.float64)) for values in (a, b))
    return bool(np.abs(a - b).max(initial=0.0) <= 0.05 * np.abs(b).max(initial=0.0) + 1e-6)


def _owner(layer: Any, variable: Any) -> str:
    """The innermost layer that has the variable, as its name and kind."""
    for inner in getattr(layer, "layers", []):
        if any(own is variable for own in inner.variables):
            return _owner(inner, variable)
    return f"{layer.name} ({type(layer).__name__})"


def refuse_probabilities(model: Any) -> None:
    """A last layer that gives probabilities, where it can be told: losses here take logits."""
    layers = getattr(model, "layers", None)
    if not layers:
        return
    last = layers[-1]
    activation = getattr(last, "activation", None)
    name = "softmax" if isinstance(last, keras.layers.Softmax) else getattr(activation, "__name__", "")
    if name in ("sigmoid", "softmax"):
        raise ValueError(
            f"the last layer {last.name!r} ends in {name}, and logits are wanted: leave the activation out "
            f"(keras.ops.{name}(model(X)) are the probabilities then)"
        )


def refuse_whole_numbers(model: Any) -> None:
    """A model that looks its inputs up (an embedding) cannot take standardized columns."""
    tensors = getattr(model, "inputs", None)
    if tensors and "float" not in str(tensors[0].dtype):
        raise ValueError(
            f"{model.name!r} takes {tensors[0].dtype} inputs, and FairClassifier standardizes its columns; train it "
            "with fairbound.integrations.keras.fit"
        )


def in_mode(model: Any, *, training: bool) -> dict[str, bool]:
    """`training=` for a model whose `call` takes it; a subclass need not."""
    taken = inspect.signature(model.call).parameters
    passes_on = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values())
    return {"training": training} if "training" in taken or passes_on else {}
