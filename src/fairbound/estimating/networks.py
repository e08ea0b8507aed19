"""The network that a `FairClassifier` is given: a torch module, or a Keras model in the form of one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from fairbound.estimating.people import People
from fairbound.modules import ModuleForward


def own_copy(module: Any, people: People) -> nn.Module:
    """A copy to train; Keras is loaded only where its model is given."""
    if any(base.__module__.partition(".")[0] == "keras" for base in type(module).__mro__):
        from fairbound.keras.module import own_classifier

        return own_classifier(module, people.X, people.classes)
    copied: nn.Module = deepcopy(module)
    return copied


def forward_of(network: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The network as a function of flat parameters."""
    own: Any = getattr(network, "flat_forward", None)
    return ModuleForward(network) if own is None else own


def as_given(network: nn.Module) -> Any:
    """The network in the form that it was given in."""
    own: Any = getattr(network, "keras_model", None)
    return network if own is None else own()
