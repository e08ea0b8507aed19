"""Evaluations of models during a run: loss, accuracy and constraints on data that do not train them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.auditing import Verdict, verdict
from fairbound.constraints.batch import MiniBatch
from fairbound.constraints.constraint import Constraint
from fairbound.constraints.constraint_set import ConstraintSet
from fairbound.integrations.sklearn.inputs import TrainingData


class Candidate(NamedTuple):
    """A model during a run, evaluated on held-out data."""

    mode: str
    step: int
    loss: float
    accuracy: float
    violation: float  # the largest c, at least 0
    c: Tensor  # (m,) constraints, with the exact rates; NaN where a cell is empty
    x: Tensor  # (n,)
    multipliers: Tensor | None  # (m,)
    eligible: bool = False  # whether it may be selected
    averaged: bool = False  # whether it is the mean of the last steps' models
    fraction: float = 1.0  # held-out duals: of the way from the unconstrained model to the end of the run

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.violation)


class Evaluator:
    """Evaluates models on some of the examples."""

    def __init__(
        self,
        data: TrainingData,
        examples: Tensor,
        constraint: Constraint | None,
        forward: Callable[[Tensor, Tensor], Tensor],
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self.forward, self.loss, self.constraint = forward, loss, constraint
        self.X, self.y, self.groups = data.X[examples], data.y[examples], data.groups[examples]
        self.weight = None if data.weight is None else data.weight[examples]
        self.constraints = None if constraint is None else ConstraintSet((constraint,))

    def candidate(self, mode: str, step: int, x: Tensor, multipliers: Tensor | None) -> Candidate:
        """The model with its loss, accuracy and violation."""
        batch, outputs = self._forward(x)
        weight = torch.ones_like(batch.losses) if self.weight is None else self.weight
        share = weight / weight.sum()
        correct = (_decisions(outputs) == self.y).float()
        c = torch.zeros(0) if self.constraints is None else self.constraints.evaluate(batch, exact=True)[1:]
        violation = max([0.0, *c[~c.isnan()].tolist()])
        loss, accuracy = float(share @ batch.losses), float(share @ correct)
        return Candidate(mode, step, loss, accuracy, violation, c, x.clone(), multipliers)

    def verdict(self, x: Tensor) -> Verdict:
        """Whether the constraint holds in the population that the examples are drawn from."""
        assert self.constraint is not None
        batch, outputs = self._forward(x)
        return verdict(
            self.constraint,
            self.groups,
            losses=batch.losses,
            predictions=_decisions(outputs).long(),
            outputs=outputs,
            labels=self.y,
            weight=self.weight,
        )

    def _forward(self, x: Tensor) -> tuple[MiniBatch, Tensor]:
        """All examples after the forward pass, and the model's outputs."""
        with torch.no_grad():
            outputs = self.forward(x, self.X)
            return MiniBatch(self.loss(outputs, self.y), self.groups, self.y, outputs, self.weight), outputs


def _decisions(outputs: Tensor) -> Tensor:
    """The number of the class, in the labels' type for two."""
    return (outputs > 0).to(outputs.dtype) if outputs.ndim == 1 else outputs.argmax(-1)
