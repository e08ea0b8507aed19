"""What a constraint takes means of: the loss, or a rate.

A rate counts decisions and has no gradient, so a soft rate stands in for it while training: the probability that the
model gives. `Rate` holds both; what is reported is the true one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Value = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) -> one number per row


def soft_positive(outputs: Tensor, labels: Tensor) -> Tensor:
    """The probability of the positive class from a logit: the differentiable stand-in for a positive prediction."""
    return torch.sigmoid(_one_logit(outputs))


def positive(outputs: Tensor, labels: Tensor) -> Tensor:
    """1 for a positive prediction (logit > 0, probability > 1/2), else 0."""
    return (_one_logit(outputs) > 0).to(outputs.dtype)


def _one_logit(outputs: Tensor) -> Tensor:
    if outputs.ndim > 1 and outputs.shape[1:].numel() != 1:
        raise ValueError(
            f"soft rates need one logit per row, got outputs of shape {tuple(outputs.shape)}; "
            "for several classes name one of them, outcome=k, with a notion that takes it (demographic_parity, "
            "equal_opportunity, minimum_rate, maximum_rate)"
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
            f"outcome={outcome} needs outputs (rows, classes) with more than {outcome} classes, "
            f"got shape {tuple(outputs.shape)}"
        )
    return outputs


@dataclass(frozen=True)
class Rate:
    """A rate of predictions: what is trained and what it stands for."""

    soft: Value
    true: Value


def rate_of(outcome: int | None) -> Rate:
    """The rate of positive predictions from one logit (None), or of a class of several."""
    return Rate(soft_positive, positive) if outcome is None else Rate(SoftClass(outcome), HardClass(outcome))
