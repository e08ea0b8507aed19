"""A problem whose constraints are in another unit: the same feasible points, other multipliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fairbound.benchmark.problems._catalog import Instance, Solution
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint import AnyConstraint, Constraint
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.constraints._statistics import PerExample, Statistic


@dataclass(frozen=True)
class Multiple:
    """A per-example value times a number."""

    values: PerExample
    factor: float

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.factor * self.values(outputs, labels)


def scaled_constraint(constraint: AnyConstraint, factor: float, loss: PerExample) -> Any:
    """factor * c <= 0 in the place of c <= 0; `loss` is the problem's, which a constraint without
    statistic means."""
    if factor == 1.0:
        return constraint
    if not isinstance(constraint, Constraint):
        return replace(constraint, fun=_multiple(constraint.fun, factor))
    statistic = constraint.statistic or Statistic(loss)
    exact = None if statistic.exact is None else Multiple(statistic.exact, factor)
    return replace(
        constraint,
        bound=factor * constraint.bound,
        statistic=Statistic(Multiple(statistic.surrogate, factor), exact),
    )


def _multiple(fun: Callable[[MiniBatch], Any], factor: float) -> Callable[[MiniBatch], Any]:
    def multiple(batch: MiniBatch) -> Any:
        returned = fun(batch)
        return (
            (factor * returned[0], returned[1])
            if isinstance(returned, tuple)
            else factor * returned
        )

    return multiple


def scaled_instance(instance: Instance, factor: float) -> Instance:
    """Instance with all constraints times the factor; violations are measured in the old unit."""
    problem, solution = instance.problem, instance.solution
    parts = tuple(
        scaled_constraint(part, factor, problem.loss) for part in problem.constraints.parts
    )
    if solution is not None and solution.y is not None:
        solution = Solution(solution.x, solution.y / factor)
    constraint = ConstraintSet(parts)
    return replace(
        instance,
        problem=replace(problem, constraint=constraint),
        solution=solution,
        scale=factor * instance.scale,
    )
