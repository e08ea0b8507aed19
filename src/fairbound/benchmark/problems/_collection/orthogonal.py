"""The leading subspace of a covariance matrix: orthogonality as equality constraints.

    min -1/2 E |W'a|^2   s.t.   W'W = I,   W (20, 4)

F* = -1/2 (the sum of the 4 largest eigenvalues of E aa'), by Fan's theorem. W is unique up to
rotation, so that the value alone is known. The objective is concave: where the Lagrangian has no
curvature, descent-ascent cycles.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from fairbound.benchmark.problems import BenchmarkProblem, Instance, Optimum
from fairbound.benchmark.problems._certificate import kkt_residual
from fairbound.benchmark.problems.expectation import expectation

_F64 = torch.float64
DIMENSION, RANK, _EXAMPLES = 20, 4, 640
_ROWS, COLUMNS = torch.triu_indices(RANK, RANK)
# so that all constraints have gradients of one size
HALF = torch.where(_ROWS == COLUMNS, 0.5, 1.0).to(_F64)


@cache
def _examples() -> Tensor:
    """(EXAMPLES, DIMENSION) with standard deviations 1, .95, .9, .85, then .5 and falling."""
    generator = torch.Generator().manual_seed(0)
    deviation = torch.cat(
        [torch.linspace(1.0, 0.85, RANK), torch.linspace(0.5, 0.1, DIMENSION - RANK)]
    ).to(_F64)
    directions = torch.linalg.qr(
        torch.randn(DIMENSION, DIMENSION, dtype=_F64, generator=generator)
    )[0]
    drawn: Tensor = (
        deviation
        * torch.randn(_EXAMPLES, DIMENSION, dtype=_F64, generator=generator)
        @ directions.T
    )
    return drawn


def _values(x: Tensor, given: Tensor) -> Tensor:
    W = x.reshape(DIMENSION, RANK)
    f = -0.5 * (given @ W).square().sum(1, keepdim=True)
    c = HALF * (W.T @ W - torch.eye(RANK, dtype=_F64))[_ROWS, COLUMNS]
    return torch.cat([f, c.expand(len(given), -1)], 1)


def build() -> Instance:
    start = (
        torch.randn(DIMENSION * RANK, dtype=_F64, generator=torch.Generator().manual_seed(1))
        / DIMENSION**0.5
    )
    return expectation(_values, _examples(), start, equalities=len(_ROWS), batch=24)


def _optimum() -> Optimum:
    covariance = _examples().T @ _examples() / _EXAMPLES
    eigenvalues, vectors = torch.linalg.eigh(covariance)
    largest, W = eigenvalues[-RANK:], vectors[:, -RANK:]
    y = torch.where(_ROWS == COLUMNS, largest[_ROWS], 0.0)
    residual = kkt_residual(build(), W.flatten(), y)
    how = (
        "eigenvalues of the covariance; the residual is that of the KKT conditions at its"
        " eigenvectors"
    )
    return Optimum(-0.5 * float(largest.sum()), residual, how)


PROBLEMS = (
    BenchmarkProblem(
        name="orthogonal",
        title=f"The leading subspace of {RANK} dimensions of a covariance in {DIMENSION}: W'W = I",
        family="known answers",
        build=build,
        noise="which examples a mini-batch draws; the constraints are deterministic",
        kinds="= quadratic",
        scale=1.0,
        optimum=_optimum,
        origin="principal components; K. Fan 1949",
    ),
)
