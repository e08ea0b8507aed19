"""Five problems in ten variables with closed-form solutions, each a difficulty of its own, with
noise.

p1: a convex quadratic with three linear constraints, one inactive. p2: a linear objective on a
ball. p3: the outside of a ball, which is not convex. p4: a concave direction, where descent-ascent
diverges. p5: nonsmooth, |x - a|_1 with a bound on the largest coordinate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fairbound.benchmark.problems import BenchmarkProblem, Instance, Solution
from fairbound.benchmark.problems.expectation import Noise, noisy

_F64, _N = torch.float64, 10
_NOISE = Noise(gradient=0.5, value=0.5, jacobian=0.2)


class Known(NamedTuple):
    """A problem, where it starts, and its solution."""

    title: str
    kinds: str
    convex: bool
    function: Callable[[Tensor], Tensor]  # x -> f and c
    start: Tensor
    x: Tensor
    y: Tensor


def _tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=_F64)


def quadratic() -> Known:
    generator = torch.Generator().manual_seed(0)
    A = normalize(torch.randn(3, _N, dtype=_F64, generator=generator), dim=1)
    x, y = torch.randn(_N, dtype=_F64, generator=generator), _tensor(1, 0.5, 0)
    a, b = x + A.T @ y, A @ x + _tensor(0, 0, 1)

    def function(z: Tensor) -> Tensor:
        return torch.cat([0.5 * (z - a).square().sum()[None], A @ z - b])

    return Known(
        "min 1/2 |x - a|^2 s.t. A x <= b",
        "<= linear",
        True,
        function,
        torch.zeros(_N, dtype=_F64),
        x,
        y,
    )


def unit_vector(seed: int) -> Tensor:
    return normalize(
        torch.randn(_N, dtype=_F64, generator=torch.Generator().manual_seed(seed)), dim=0
    )


def ball() -> Known:
    u = unit_vector(1)

    def function(z: Tensor) -> Tensor:
        return torch.stack([2 * u @ z, 0.5 * (z @ z - 1)])

    title = "min 2 u'x s.t. 1/2 (|x|^2 - 1) <= 0, |u| = 1"
    return Known(title, "<= quadratic", True, function, torch.zeros(_N, dtype=_F64), -u, _tensor(2))


def outside() -> Known:
    u = unit_vector(2)

    def function(z: Tensor) -> Tensor:
        return torch.stack([0.5 * (z - 0.4 * u).square().sum(), 0.5 * (1 - z @ z)])

    title = "min 1/2 |x - 0.4 u|^2 s.t. 1/2 (1 - |x|^2) <= 0, |u| = 1"
    return Known(title, "<= concave", False, function, 0.4 * u + 0.1, u, _tensor(0.6))


def concave() -> Known:
    sign = torch.ones(_N, dtype=_F64)
    sign[-1] = -1.0
    start, x = torch.full((_N,), 0.5, dtype=_F64), torch.zeros(_N, dtype=_F64)
    start[-1], x[-1] = 0.3, 1.0

    def function(z: Tensor) -> Tensor:
        return torch.stack([0.5 * (sign * z) @ z, z[-1] - 1, -z[-1] - 1])

    title = "min 1/2 (x1^2 + ... + x9^2 - x10^2) s.t. -1 <= x10 <= 1"
    return Known(title, "<= linear", False, function, start, x, _tensor(1, 0))


def nonsmooth() -> Known:
    a = torch.linspace(-1, 1, _N, dtype=_F64)

    def function(z: Tensor) -> Tensor:
        return torch.stack([(z - a).abs().sum(), z.amax() - 0.5])

    title = "min |x - a|_1 s.t. max x <= 0.5"
    return Known(
        title,
        "<= nonsmooth",
        True,
        function,
        torch.zeros(_N, dtype=_F64),
        a.clamp(max=0.5),
        _tensor(3),
    )


def _problem(number: int, known: Known) -> BenchmarkProblem:
    def build() -> Instance:
        return noisy(
            known.function,
            known.start,
            _NOISE,
            inequalities=len(known.y),
            seed=number,
            solution=Solution(known.x, known.y),
        )

    return BenchmarkProblem(
        name=f"p{number}",
        title=known.title,
        family="known answers",
        build=build,
        noise=(
            f"xi'x added to f, zeta + Zx to c; sd {_NOISE.gradient}, {_NOISE.value} and"
            f" {_NOISE.jacobian}, centered"
        ),
        kinds=known.kinds,
        convex=known.convex,
        scale=1.0,
        changed=number == 3,
        origin="closed forms of this library's tests",
    )


PROBLEMS = tuple(
    _problem(i, make()) for i, make in enumerate((quadratic, ball, outside, concave, nonsmooth), 1)
)
