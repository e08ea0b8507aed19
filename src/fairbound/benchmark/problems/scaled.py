"""A constraint on the means of cells in another unit: the same feasible points, other multipliers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fairbound.constraints.constraint import Constraint
from fairbound.constraints.statistics import PerExample, Statistic


@dataclass(frozen=True)
class Multiple:
    """A per-example value times a number."""

    values: PerExample
    factor: float

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.factor * self.values(outputs, labels)


def scaled(constraint: Constraint, factor: float, loss: PerExample) -> Constraint:
    """factor * c <= 0 in the place of c <= 0; `loss` is the problem's, which a constraint without statistic means."""
    if factor == 1.0:
        return constraint
    statistic = constraint.statistic or Statistic(loss)
    exact = None if statistic.exact is None else Multiple(statistic.exact, factor)
    return replace(
        constraint,
        bound=factor * constraint.bound,
        statistic=Statistic(Multiple(statistic.surrogate, factor), exact),
    )
