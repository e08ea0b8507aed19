"""A step size whose product with a vector is left open.

A method says d = -tau * direction, and `.grad` wants the direction: d / -tau. For a small model the multiplication and
the division are a twelfth of a step, so a loop hands the method a tau that does neither.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from fairbound.core import Algorithm
from fairbound.training.hyperparams import with_hyperparams


class Product(NamedTuple):
    """factor * vector, not multiplied."""

    factor: float
    vector: Tensor


class StepSize(float):
    """A number like any other, until it meets a tensor from the left.

    >>> import torch
    >>> (-StepSize(0.5) * torch.ones(2)).vector
    tensor([1., 1.])
    """

    __slots__ = ()

    def __neg__(self) -> StepSize:
        return StepSize(float.__neg__(self))

    def __mul__(self, other: Any) -> Any:
        return Product(float(self), other) if isinstance(other, Tensor) else float.__mul__(self, other)


def undivided(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """The method with such a step, where it says which field that is."""
    name = vars(type(algorithm)).get("scales_last", "")  # its own word: a subclass may do more with d
    step = getattr(algorithm, name) if name else None
    return with_hyperparams(algorithm, {name: StepSize(step)}) if isinstance(step, float) and step else algorithm
