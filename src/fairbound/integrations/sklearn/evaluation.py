"""Looks at models on their way: loss, accuracy and constraints on rows that do not train them."""

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


class Seen(NamedTuple):
    """A model on its way, as the validation rows see it."""

    mode: str
    step: int
    loss: float
    accuracy: float
    violation: float  # the largest c, at least 0
    c: Tensor  # (m,) constraints, with the true rates; NaN where a cell has no rows
    x: Tensor  # (n,)
    multipliers: Tensor | None  # (m,)
    late: bool = False  # whether it may be chosen
    averaged: bool = False  # whether it is the mean of the last steps' models
    way: float = 1.0  # own rows: how far from the model without a constraint to where they lead


class Evaluator:
    """Looks at models on some rows."""

    def __init__(
        self,
        people: TrainingData,
        rows: Tensor,
        constraint: Constraint | None,
        forward: Callable[[Tensor, Tensor], Tensor],
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self.forward, self.loss, self.constraint = forward, loss, constraint
        self.X, self.y, self.groups = people.X[rows], people.y[rows], people.groups[rows]
        self.weight = None if people.weight is None else people.weight[rows]
        self.constraints = None if constraint is None else ConstraintSet((constraint,))

    def rows(self, x: Tensor) -> MiniBatch:
        """What the model makes of them."""
        with torch.no_grad():
            outputs = self.forward(x, self.X)
            return MiniBatch(self.loss(outputs, self.y), self.groups, self.y, outputs, self.weight)

    def seen(self, mode: str, step: int, x: Tensor, multipliers: Tensor | None) -> Seen:
        found = self.rows(x)
        assert found.outputs is not None
        weight = torch.ones_like(found.losses) if self.weight is None else self.weight
        share = weight / weight.sum()
        right = (_decided(found.outputs) == self.y).float()
        c = self._constraints(found)
        told = c[~c.isnan()]
        violation = max(0.0, float(told.max())) if told.numel() else 0.0
        return Seen(mode, step, float(share @ found.losses), float(share @ right), violation, c, x.clone(), multipliers)

    def verdict(self, x: Tensor) -> Verdict:
        """Whether the constraint holds for people like these."""
        assert self.constraint is not None
        found = self.rows(x)
        return verdict(
            self.constraint,
            found.groups,
            losses=found.losses,
            predictions=None if found.outputs is None else _decided(found.outputs).long(),
            outputs=found.outputs,
            labels=found.labels,
            weight=found.weight,
        )

    def _constraints(self, rows: MiniBatch) -> Tensor:
        return torch.zeros(0) if self.constraints is None else self.constraints.evaluate(rows, exact=True)[1:]


def finite(one: Seen) -> bool:
    """Whether the model is whole."""
    return math.isfinite(one.loss) and math.isfinite(one.violation)


def _decided(outputs: Tensor) -> Tensor:
    """The number of the class, in the labels' type for two."""
    return (outputs > 0).to(outputs.dtype) if outputs.ndim == 1 else outputs.argmax(-1)
