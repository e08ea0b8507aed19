"""Income in Oklahoma with the Frobenius norm of each of the network's tensors at most BOUND.

The constraints are deterministic: functions of the parameters alone.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fairbound.benchmark.problems._catalog import FOLDER, BenchmarkProblem, Instance
from fairbound.benchmark.problems.table import read_spec, table_problem
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._cells import Cells
from fairbound.constraints._constraint import FunctionConstraint
from fairbound.data._samplers import BatchSpec
from fairbound.training._functional import ModuleForward

_BOUND, BATCH = 1.0, 768


def norms(forward: ModuleForward, bound: float) -> FunctionConstraint:
    """|W_j| - bound <= 0 for every tensor."""
    places = list(pairwise(accumulate(forward.sizes, initial=0)))

    def excess(batch: MiniBatch) -> Tensor:
        (x,) = batch.parameters
        return torch.stack([torch.linalg.vector_norm(x[a:b]) - bound for a, b in places])

    return FunctionConstraint(
        excess, tuple(f"norm of {name} <= {bound:g}" for name in forward.names), Cells((), ())
    )


def build() -> Instance:
    table = table_problem(read_spec(FOLDER / "income-ok-race.toml")).build()
    forward = table.problem.forward
    assert isinstance(forward, ModuleForward)
    return replace(
        table,
        problem=replace(table.problem, constraint=norms(forward, _BOUND)),
        batch=BatchSpec(objective=BATCH, cell=1),
    )


PROBLEMS = (
    BenchmarkProblem(
        name="weight-norms",
        title="Income in Oklahoma: the norm of each of the network's six tensors at most 1",
        family="control, physics, others",
        build=build,
        scale=_BOUND,
        noise="which examples a mini-batch draws; the constraints have none",
        kinds="<= convex, deterministic",
        origin="a bound on every tensor's Frobenius norm as in humancompatible-train's experiments",
        license="public domain, US Census Bureau",
    ),
)
