"""What a constraint takes means of: the loss, or a rate of predictions.

A rate counts decisions and has no gradient, so training uses a surrogate, the probability that the
model gives; what is reported is the exact rate. A `Statistic` holds both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

PerExample = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) -> one value per example


@dataclass(frozen=True)
class Statistic:
    """A per-example value: what is trained, and what is reported where that differs."""

    surrogate: PerExample
    exact: PerExample | None = None

    @property
    def reported(self) -> PerExample:
        return self.exact or self.surrogate


def soft_positive(outputs: Tensor, labels: Tensor) -> Tensor:
    """The probability of the positive class from a logit: the differentiable surrogate of a
    positive prediction."""
    return torch.sigmoid(_one_logit(outputs))


def positive(outputs: Tensor, labels: Tensor) -> Tensor:
    """1 for a positive prediction (logit > 0, probability > 1/2), else 0."""
    return (_one_logit(outputs) > 0).to(outputs.dtype)


def _one_logit(outputs: Tensor) -> Tensor:
    if outputs.ndim > 1 and outputs.shape[1:].numel() != 1:
        raise ValueError(
            f"rates need one logit per example, got outputs of shape {tuple(outputs.shape)}; for"
            " several classes name one of them, outcome=k, with a notion that takes it"
            " (demographic_parity, equal_opportunity, minimum_rate, maximum_rate)"
        )
    return outputs.reshape(outputs.shape[0])


@dataclass(frozen=True)
class SoftClass:
    """The softmax probability of class `outcome` from one logit per class."""

    outcome: int

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return torch.softmax(_class_logits(outputs, self.outcome), -1)[..., self.outcome]


@dataclass(frozen=True)
class HardClass:
    """1 where class `outcome` has the largest logit, else 0."""

    outcome: int

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (_class_logits(outputs, self.outcome).argmax(-1) == self.outcome).to(outputs.dtype)


def _class_logits(outputs: Tensor, outcome: int) -> Tensor:
    if outputs.ndim != 2 or not 0 <= outcome < outputs.shape[1]:
        raise ValueError(
            f"outcome={outcome} needs outputs (examples, classes) with more than {outcome} classes,"
            f" got shape {tuple(outputs.shape)}"
        )
    return outputs


def rate_of(outcome: int | None) -> Statistic:
    """The rate of positive predictions from one logit (None), or of a class of several."""
    if outcome is None:
        return Statistic(soft_positive, positive)
    return Statistic(SoftClass(outcome), HardClass(outcome))
