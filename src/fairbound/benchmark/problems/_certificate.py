"""How near a point is to a solution of a problem: its KKT residual over all training examples."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.benchmark.problems._catalog import Instance
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint import FunctionConstraint
from fairbound.integrations.torch._kkt import fitted_multipliers, residuals

BINDS = 1e-3  # of constraints in the units of the problems


class Derivatives(NamedTuple):
    """Objective and constraints over all training examples, in double precision."""

    f: Tensor  # ()
    g: Tensor  # (n,)
    c: Tensor  # (m,)
    J: Tensor  # (m, n)


def derivatives(instance: Instance, x: Tensor) -> Derivatives:
    """Derivatives at x (n,), by one backward pass for the objective and one for every mean that the
    constraints compare."""
    problem, train = instance.problem, instance.splits[0].train
    own = problem.constraints
    inputs, labels = problem.data.X[train], problem.data.y[train]
    places = [
        [torch.isin(train, cell).nonzero().flatten() for cell in part.cells.examples]
        for part in own.parts
    ]

    def means(point: Tensor) -> Tensor:
        outputs = problem.forward(point, inputs)
        batch = MiniBatch(problem.loss(outputs, labels), None, labels, outputs, parameters=(point,))
        values = own.example_values(batch)
        found = [values[0].mean()[None]]
        for part, term, cells in zip(own.parts, own.terms, places, strict=True):
            if isinstance(part, FunctionConstraint):
                # none where it is a function of the parameters alone
                at = torch.cat([*cells, train[:0]])
                block = MiniBatch(
                    batch.losses[at], None, labels[at], outputs[at], parameters=(point,)
                )
                found.append(part.on(block).value)
            else:
                found.append(torch.stack([values[term.statistic or 0][at].mean() for at in cells]))
        return torch.cat(found)

    value, pull = torch.func.vjp(means, x.detach())[:2]
    rows = torch.stack([pull(one)[0] for one in torch.eye(len(value)).to(value)]).double()
    value, precise = value.double(), own.to(value.device, torch.float64)
    c = precise.value(value)[1:] if own.parts else value[1:]
    return Derivatives(
        value[0], rows[0], c, precise.jacobian(value, rows[1:]) if own.parts else rows[1:]
    )


def fitted(at: Derivatives, equality: Tensor | None = None) -> Tensor:
    """(m,) the multipliers that fit best: argmin |g + J'y|, y >= 0 for inequalities that bind, 0
    for the others."""
    return fitted_multipliers(at.g, at.c, at.J, equality, BINDS)


def kkt_residual(instance: Instance, x: Tensor, y: Tensor | None = None) -> float:
    """The largest of stationarity, feasibility, complementarity and sign, relative to max(1, |grad
    f|).

    Args:
        x: (n,) the point.
        y: (m,) multipliers; None: those that fit best.
    """
    at, equality = derivatives(instance, x), instance.problem.constraints.equality
    found = residuals(at.g, at.c, at.J, fitted(at, equality) if y is None else y.to(at.g), equality)
    return max(found) / max(1.0, float(at.g.norm()))
