"""Twelve problems of Hock and Schittkowski's collection, with noise on gradients, constraints and
Jacobians.

The formulas, starting points and solutions are those of W. Hock and K. Schittkowski, Test Examples
for Nonlinear Programming Codes, Springer 1981; inequalities are turned to c <= 0 and bounds on x
are inequalities, without noise. So that gradients along the way are of the size of 1, f and c are
divided by constants, and problem 10 starts at a fifth of its (-10, 10). Each title says so.

Twice, others solve the problem as well. 26: any (a, a, a) with a + a^3 + a^4 = 3 has f = 0, with a
= 1 or a near -1.81, and f is flat there, so that the value alone is known. 40: so does the solution
with the signs of x3 and x4 changed; the one stated is on the side of the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fairbound.benchmark.problems import BenchmarkProblem, Instance, Optimum, Solution
from fairbound.benchmark.problems._certificate import kkt_residual
from fairbound.benchmark.problems.expectation import Noise, noisy

_F64 = torch.float64
_NOISE = Noise(gradient=0.3, value=0.3, jacobian=0.1)
Formula = Callable[..., Tensor]  # of x1, x2, ...
Formulas = Callable[..., list[Tensor]]


def _tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=_F64)


def _problem(
    number: int,
    text: str,  # the problem in a line
    f: Formula,
    c: Formulas,
    start: Sequence[float],
    x: Sequence[float],
    y: Sequence[float],  # of the formulas as they are, not divided
    *,
    over: tuple[float, tuple[float, ...]],  # what f and every c are divided by
    equalities: int = 0,
    deterministic: Sequence[int] = (),
    kinds: str,
    convex: bool = False,
    unique: bool = True,
) -> BenchmarkProblem:
    divisors = _tensor([over[0], *over[1]])
    solution = Solution(_tensor(x), _tensor(y) * divisors[1:] / divisors[0])

    def function(point: Tensor) -> Tensor:
        parts = point.unbind()
        return torch.stack([f(*parts), *c(*parts)]) / divisors

    def build() -> Instance:
        return noisy(
            function,
            _tensor(start),
            _NOISE,
            inequalities=len(y) - equalities,
            equalities=equalities,
            deterministic=deterministic,
            seed=number,
            solution=solution if unique else None,
        )

    def optimum() -> Optimum:
        residual = kkt_residual(build(), *solution)
        how = (
            f"the value at {tuple(x)}, one of several minimizers; the residual is that of the KKT"
            " conditions there"
        )
        return Optimum(float(function(solution.x)[0]), residual, how, solution.y)

    shown = ", ".join(f"{one:g}" for one in dict.fromkeys(over[1]))
    return BenchmarkProblem(
        name=f"hs{number}",
        title=f"{text}; f is divided by {over[0]:g}, c by {shown}",
        family="known answers",
        build=build,
        noise=(
            f"xi'x added to f, zeta + Zx to c; sd {_NOISE.gradient}, {_NOISE.value} and"
            f" {_NOISE.jacobian}, centered"
        ),
        kinds=kinds,
        convex=convex,
        scale=1.0,
        changed=number == 71,
        optimum=None if unique else optimum,
        origin=f"Hock and Schittkowski 1981, problem {number}",
    )


def squares(x: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(x)).square().sum()


PROBLEMS = (
    _problem(
        6,
        "min (1 - x1)^2 s.t. 10 (x2 - x1^2) = 0",
        lambda a, b: (1 - a) ** 2,
        lambda a, b: [10 * (b - a**2)],
        [-1.2, 1],
        [1, 1],
        [0],
        over=(2, (10,)),
        equalities=1,
        kinds="= quadratic",
    ),
    _problem(
        7,
        "min log(1 + x1^2) - x2 s.t. (1 + x1^2)^2 + x2^2 = 4",
        lambda a, b: torch.log(1 + a**2) - b,
        lambda a, b: [(1 + a**2) ** 2 + b**2 - 4],
        [2, 2],
        [0, 3**0.5],
        [0.5 / 3**0.5],
        over=(1, (4,)),
        equalities=1,
        kinds="= nonlinear",
    ),
    _problem(
        10,
        "min x1 - x2 s.t. 3 x1^2 - 2 x1 x2 + x2^2 <= 1, from (-2, 2)",
        lambda a, b: a - b,
        lambda a, b: [3 * a**2 - 2 * a * b + b**2 - 1],
        [-2, 2],
        [0, 1],
        [0.5],
        over=(1, (4,)),
        kinds="<= quadratic",
        convex=True,
    ),
    _problem(
        22,
        "min (x1 - 2)^2 + (x2 - 1)^2 s.t. x1 + x2 <= 2, x1^2 <= x2",
        lambda a, b: (a - 2) ** 2 + (b - 1) ** 2,
        lambda a, b: [a + b - 2, a**2 - b],
        [2, 2],
        [1, 1],
        [2 / 3, 2 / 3],
        over=(1, (1, 1)),
        kinds="<= linear, quadratic",
        convex=True,
    ),
    _problem(
        26,
        "min (x1 - x2)^2 + (x2 - x3)^4 s.t. (1 + x2^2) x1 + x3^4 = 3",
        lambda a, b, c: (a - b) ** 2 + (b - c) ** 4,
        lambda a, b, c: [(1 + b**2) * a + c**4 - 3],
        [-2.6, 2, 2],
        [1, 1, 1],
        [0],
        over=(10, (10,)),
        equalities=1,
        kinds="= nonlinear",
        unique=False,
    ),
    _problem(
        27,
        "min .01 (x1 - 1)^2 + (x2 - x1^2)^2 s.t. x1 + x3^2 = -1",
        lambda a, b, c: 0.01 * (a - 1) ** 2 + (b - a**2) ** 2,
        lambda a, b, c: [a + c**2 + 1],
        [2, 2, 2],
        [-1, 1, 0],
        [0.04],
        over=(4, (4,)),
        equalities=1,
        kinds="= quadratic",
    ),
    _problem(
        28,
        "min (x1 + x2)^2 + (x2 + x3)^2 s.t. x1 + 2 x2 + 3 x3 = 1",
        lambda a, b, c: (a + b) ** 2 + (b + c) ** 2,
        lambda a, b, c: [a + 2 * b + 3 * c - 1],
        [-4, 1, 1],
        [0.5, -0.5, 0.5],
        [0],
        over=(2, (4,)),
        equalities=1,
        kinds="= linear",
        convex=True,
    ),
    _problem(
        35,
        "min 9 - 8 x1 - 6 x2 - 4 x3 + 2 x1^2 + 2 x2^2 + x3^2 + 2 x1 x2 + 2 x1 x3 s.t. x1 + x2 + 2"
        " x3 <= 3, x >= 0",
        lambda a, b, c: (
            9 - 8 * a - 6 * b - 4 * c + 2 * a**2 + 2 * b**2 + c**2 + 2 * a * b + 2 * a * c
        ),
        lambda a, b, c: [a + b + 2 * c - 3, -a, -b, -c],
        [0.5, 0.5, 0.5],
        [4 / 3, 7 / 9, 4 / 9],
        [2 / 9, 0, 0, 0],
        over=(2, (2, 1, 1, 1)),
        deterministic=(1, 2, 3),
        kinds="<= linear",
        convex=True,
    ),
    _problem(
        39,
        "min -x1 s.t. x2 - x1^3 - x3^2 = 0, x1^2 - x2 - x4^2 = 0",
        lambda a, b, c, d: -a,
        lambda a, b, c, d: [b - a**3 - c**2, a**2 - b - d**2],
        [2, 2, 2, 2],
        [1, 1, 0, 0],
        [-1, -1],
        over=(1, (2, 2)),
        equalities=2,
        kinds="= nonlinear",
    ),
    _problem(
        40,
        "min -x1 x2 x3 x4 s.t. x1^3 + x2^2 = 1, x1^2 x4 = x3, x4^2 = x2",
        lambda a, b, c, d: -a * b * c * d,
        lambda a, b, c, d: [a**3 + b**2 - 1, a**2 * d - c, d**2 - b],
        [0.8, 0.8, 0.8, 0.8],
        [2 ** (-1 / 3), 2 ** (-1 / 2), 2 ** (-11 / 12), 2 ** (-1 / 4)],
        [0.5, -(2 ** (-13 / 12)), 2 ** (-3 / 2)],
        over=(1, (1, 1, 1)),
        equalities=3,
        kinds="= nonlinear",
    ),
    _problem(
        48,
        "min (x1 - 1)^2 + (x2 - x3)^2 + (x4 - x5)^2 s.t. x1 + x2 + x3 + x4 + x5 = 5, x3 - 2 (x4 +"
        " x5) = -3",
        lambda a, b, c, d, e: (a - 1) ** 2 + (b - c) ** 2 + (d - e) ** 2,
        lambda a, b, c, d, e: [a + b + c + d + e - 5, c - 2 * (d + e) + 3],
        [3, 5, -3, 2, -2],
        [1, 1, 1, 1, 1],
        [0, 0],
        over=(4, (2, 2)),
        equalities=2,
        kinds="= linear",
        convex=True,
    ),
    _problem(
        71,
        "min x1 x4 (x1 + x2 + x3) + x3 s.t. x1 x2 x3 x4 >= 25, 1 <= x <= 5, |x|^2 = 40",
        lambda a, b, c, d: a * d * (a + b + c) + c,
        lambda *x: [
            25 - x[0] * x[1] * x[2] * x[3],
            *(1 - one for one in x),
            *(one - 5 for one in x),
            squares(x) - 40,
        ],
        [1, 5, 5, 1],
        [1.0, 4.742999637264417, 3.821149984184874, 1.3794082931726723],
        [0.5522936601207269, 1.0878712286669408, 0, 0, 0, 0, 0, 0, 0, 0.16146856677050592],
        over=(10, (25, *(1,) * 8, 10)),
        equalities=1,
        deterministic=range(1, 9),
        kinds="<= nonlinear, bounds; = quadratic",
    ),
)
