"""The network that a `FairClassifier` is given: a torch module, or a Keras model in the form of one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from fairbound.integrations.sklearn.inputs import TrainingData
from fairbound.training.functional import ModuleForward


def own_copy(module: Any, people: TrainingData) -> nn.Module:
    """A copy to train; Keras is loaded only where its model is given."""
    if any(base.__module__.partition(".")[0] == "keras" for base in type(module).__mro__):
        from fairbound.integrations.keras.module import own_classifier

        return own_classifier(module, people.X, people.classes)
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch module or a Keras model, got {type(module).__name__}")
    copied: nn.Module = deepcopy(module)
    _check_outputs(copied, people)
    return copied


def _check_outputs(module: nn.Module, people: TrainingData) -> None:
    kinds = {p.dtype for p in module.parameters()}
    if kinds - {torch.float32}:
        raise ValueError(f"FairClassifier trains in float32, and the module has {kinds}; use module.float()")
    with torch.no_grad():
        shape = tuple(module(people.X[:2]).shape)
    wanted = ((2,), (2, 1)) if people.classes == 2 else ((2, people.classes),)
    if shape not in wanted:
        which = "one logit a row" if people.classes == 2 else f"{people.classes} logits a row, one for each class"
        raise ValueError(
            f"y has {people.classes} classes, so the module must give {which}; for 2 rows it gives {shape}"
        )


def forward_of(network: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The network as a function of flat parameters."""
    own: Any = getattr(network, "flat_forward", None)
    return ModuleForward(network) if own is None else own


def as_given(network: nn.Module) -> Any:
    """The network in the form that it was given in."""
    own: Any = getattr(network, "keras_model", None)
    return network if own is None else own()
