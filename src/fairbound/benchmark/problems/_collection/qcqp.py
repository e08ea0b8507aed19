"""A quadratic problem with quadratic constraints, all of them expectations.

    min E 1/2 (h'x - t)^2   s.t.   E [1/2 ((w_i * z)'x)^2 + (a_i + .3 a_i * z)'x] <= b_i,
            i = 1, ..., 8

The form is that of Yan and Xu, "Adaptive primal-dual stochastic gradient method for
expectation-constrained convex stochastic programs" (APriD), min E 1/2 |Hx - c|^2 s.t. E [1/2 x'Qx +
a'x] <= b, with matrices of rank 1: an example is (h, t, z). The random Q_i and a_i of all
constraints are made of one z, with weights w_i and a_i of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fairbound.benchmark.problems import BenchmarkProblem, Instance, Solution
from fairbound.benchmark.problems._collection._convex import minimizer
from fairbound.benchmark.problems.expectation import Values, expectation

_F64 = torch.float64
_N, M, _EXAMPLES = 200, 8, 640
_BOUNDS = torch.linspace(0.3, 1.0, M, dtype=_F64)


def _generated(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Examples (EXAMPLES, 2 N + 1), and the weights w (M, N) and a (M, N) of the constraints."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=_F64, generator=generator)

    h = torch.linspace(1.0, 0.3, _N, dtype=_F64) * normal(_EXAMPLES, _N)
    t = h @ (3 * normal(_N) / _N**0.5) + 0.5 * normal(_EXAMPLES)
    w, a = (
        torch.rand(M, _N, dtype=_F64, generator=generator).sqrt(),
        normalize(normal(M, _N), dim=1),
    )
    return torch.cat([h, t[:, None], normal(_EXAMPLES, _N)], 1), w, a


def values_of(w: Tensor, a: Tensor) -> Values:
    def values(x: Tensor, examples: Tensor) -> Tensor:
        h, t, z = examples.split([_N, 1, _N], 1)
        f = 0.5 * ((h @ x)[:, None] - t).square()
        c = 0.5 * (z @ (w * x).T).square() + (1 + 0.3 * z) @ (a * x).T - _BOUNDS
        return torch.cat([f, c], 1)

    return values


def _solution(examples: Tensor, w: Tensor, a: Tensor) -> Solution:
    """Solution of the mean problem."""
    h, t, z = examples.split([_N, 1, _N], 1)
    P, p = h.T @ h / len(h), (h.T @ t)[:, 0] / len(h)
    Q = w[:, :, None] * w[:, None, :] * (z.T @ z / len(z))
    return minimizer(P, -p, Q, a * (1 + 0.3 * z.mean(0)), _BOUNDS)


def build() -> Instance:
    examples, w, a = _generated()
    return expectation(
        values_of(w, a),
        examples,
        torch.zeros(_N, dtype=_F64),
        inequalities=M,
        batch=24,
        solution=_solution(examples, w, a),
    )


PROBLEMS = (
    BenchmarkProblem(
        name="qcqp",
        title=(
            f"Least squares in {_N} variables with {M} convex quadratic constraints, all"
            " expectations"
        ),
        family="known answers",
        build=build,
        changed=True,
        noise="which examples a mini-batch draws; each has its own matrices, of rank 1",
        kinds="<= quadratic",
        convex=True,
        scale=float(_BOUNDS.mean()),
        origin="Yan and Xu 2022 (APriD), with matrices of rank 1",
    ),
)
