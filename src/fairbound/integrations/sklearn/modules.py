"""The network of a `FairClassifier`: a torch module, or a Keras model wrapped as one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from fairbound.integrations.sklearn.inputs import TrainingData
from fairbound.training.functional import ModuleForward


def copy_network(module: Any, data: TrainingData) -> nn.Module:
    """A copy of the user's module to train; Keras is imported only where a Keras model is given."""
    if any(base.__module__.partition(".")[0] == "keras" for base in type(module).__mro__):
        from fairbound.integrations.keras.module import copy_classifier

        return copy_classifier(module, data.X, data.classes)
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch module or a Keras model, got {type(module).__name__}")
    copied: nn.Module = deepcopy(module)
    _check_outputs(copied, data)
    return copied


def _check_outputs(module: nn.Module, data: TrainingData) -> None:
    dtypes = {p.dtype for p in module.parameters()}
    if dtypes - {torch.float32}:
        raise ValueError(f"FairClassifier trains in float32, and the module has {dtypes}; use module.float()")
    with torch.no_grad():
        shape = tuple(module(data.X[:2]).shape)
    expected = ((2,), (2, 1)) if data.classes == 2 else ((2, data.classes),)
    if shape not in expected:
        logits = "one logit per example" if data.classes == 2 else f"{data.classes} logits per example, one per class"
        raise ValueError(
            f"y has {data.classes} classes, so the module must return {logits}; for 2 examples it returns {shape}"
        )


def functional_forward(network: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The network as a function of flat parameters."""
    own: Any = getattr(network, "flat_forward", None)
    return ModuleForward(network) if own is None else own


def unwrap(network: nn.Module) -> Any:
    """The network as the user gave it: a torch module or a Keras model."""
    own: Any = getattr(network, "keras_model", None)
    return network if own is None else own()
