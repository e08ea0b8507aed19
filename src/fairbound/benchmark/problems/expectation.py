"""Problems that are written as per-example values of [f, c]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.benchmark.problems._catalog import Instance, Solution
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint import FunctionConstraint
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.data._dataset import Dataset, Split
from fairbound.data._samplers import BatchSpec
from fairbound.training._problem import Problem

# x (n,), examples (B, ...) -> (B, 1+m): f and c of every example
Values = Callable[[Tensor, Tensor], Tensor]


def expectation(
    values: Values,
    examples: Tensor,
    start: Tensor,
    *,
    inequalities: int = 0,
    equalities: int = 0,
    batch: int = 32,
    solution: Solution | None = None,
) -> Instance:
    """min mean_i f(x, i) s.t. mean_i c(x, i) <= 0 (the first `inequalities`), = 0 (the last
    `equalities`).

    Args:
        values: written with torch operations, for one x and a mini-batch.
        examples: (N, ...) over which means are taken.
        start: (n,) the starting point of every seed.
        batch: examples of a mini-batch, for the objective and again for the constraints.
    """

    def rows(first: int, last: int) -> Callable[[MiniBatch], Tensor]:
        return lambda batch: batch.needed("outputs", "a constraint of the problem")[
            :, first:last
        ].mean(0)

    kinds = ((1, 1 + inequalities, False), (1 + inequalities, 1 + inequalities + equalities, True))
    column = torch.zeros(len(examples), dtype=torch.long)
    parts = tuple(
        FunctionConstraint(
            rows(a, b), tuple(f"c{i}" for i in range(a, b)), equality=equality, mean=True
        ).bind(column)
        for a, b, equality in kinds
        if b > a
    )
    data = Dataset(examples, torch.zeros(len(examples), dtype=start.dtype))
    return Instance(
        problem=Problem(values, lambda outputs, labels: outputs[:, 0], ConstraintSet(parts), data),
        starts=lambda seeds: start.expand(len(seeds), -1).clone(),
        splits=(Split.all_train(len(examples)),),
        batch=BatchSpec(objective=batch, cell=batch),
        solution=solution,
    )


class Noise(NamedTuple):
    """Standard deviations over examples, of every entry."""

    gradient: float  # of grad f: f(x) + xi'x
    value: float  # of c
    jacobian: float  # of J: c(x) + zeta + Z x


def noisy(
    function: Callable[[Tensor], Tensor],
    start: Tensor,
    noise: Noise,
    *,
    inequalities: int = 0,
    equalities: int = 0,
    deterministic: Sequence[int] = (),
    examples: int = 640,
    batch: int = 32,
    seed: int = 0,
    solution: Solution | None = None,
) -> Instance:
    """A deterministic problem whose examples add noise that is linear in x and has mean 0: they
    share its solution.

    Args:
        function: x (n,) -> (1+m,), f and c.
        deterministic: the constraints without noise, such as bounds on x.
    """
    n, m = len(start), inequalities + equalities
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(examples // 2, (1 + m) * n + m, dtype=start.dtype, generator=generator)
    xi, zeta, Z = normal.split([n, m, m * n], 1)
    seen = torch.ones(m, dtype=start.dtype)
    seen[list(deterministic)] = 0.0
    Z = (seen[:, None] * Z.unflatten(1, (m, n))).flatten(1)
    rows = centered(
        torch.cat([noise.gradient * xi, noise.value * seen * zeta, noise.jacobian * Z], 1)
    )

    def values(x: Tensor, given: Tensor) -> Tensor:
        xi, zeta, Z = given.split([n, m, m * n], 1)
        return function(x) + torch.cat([(xi @ x)[:, None], zeta + Z.unflatten(1, (m, n)) @ x], 1)

    return expectation(
        values,
        rows,
        start,
        inequalities=inequalities,
        equalities=equalities,
        batch=batch,
        solution=solution,
    )


def centered(noise: Tensor) -> Tensor:
    """(N, ...) with mean 0 exactly up to rounding: every draw is paired with its negative, (2N,
    ...)."""
    return torch.cat([noise, -noise])
