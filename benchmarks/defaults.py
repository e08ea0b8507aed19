"""Default settings over the scales of the constraints and of the objective, on problems P1 to P5
with known solutions.

    OMP_NUM_THREADS=1 python benchmarks/defaults.py [--steps 10000] [--noisy]

Prints, for the settings before and now, the error |x - x*| / |x_0 - x*| of the mean of the last
half of the steps, with its largest violation in units of the unscaled constraint, for every problem
(n = 10) and every scale: c is multiplied by .1, 1, 10 or 50, or f is, and then the primal step is
divided by that factor, as anyone's learning rate is. With --noisy, mini-batches of 4 (noise .5 on
grad f and c, .2 on J, times the scale).

No constant serves all of these scales. The defaults were chosen from some thirty settings on these
very problems.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound.algorithms import PHRALM, SPBM, SSLALM, DescentAscent, NuPI, Penalty
from fairbound.core import Algorithm, Draw, Estimate, Sample
from fairbound.training._hyperparams import float_settings as numbers_of
from fairbound.training._hyperparams import with_hyperparams

F64, N = torch.float64, 10
SCALES = (0.1, 1.0, 10.0, 50.0)


class Values(NamedTuple):
    """f, its gradient, c and its Jacobian at a point."""

    f: Tensor
    g: Tensor  # (n,)
    c: Tensor  # (m,)
    J: Tensor  # (m, n)


class Known(NamedTuple):
    """A problem, where it starts, and its solution: a point and its multipliers."""

    name: str
    m: int
    at: Callable[[Tensor], Values]
    start: Tensor
    x: Tensor
    y: Tensor  # (m,) multipliers


def known_problems() -> list[Known]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=F64, generator=generator)

    def numbers(*values: float) -> Tensor:
        return torch.tensor(values, dtype=F64)

    A = torch.nn.functional.normalize(normal(3, N), dim=1)
    x1, y1 = normal(N), numbers(1, 0.5, 0)
    a1, b1 = x1 + A.T @ y1, A @ x1 + numbers(0, 0, 1)
    unit = torch.nn.functional.normalize(normal(N), dim=0)
    Q = torch.ones(N, dtype=F64)
    Q[-1] = -1.0
    ends = torch.eye(N, dtype=F64)[-1:]
    a3, a5 = 0.4 * unit, torch.linspace(-1, 1, N, dtype=F64)
    start4 = torch.full((N,), 0.5, dtype=F64)
    start4[-1] = 0.3

    def p5(x: Tensor) -> Values:
        worst = (torch.arange(N) == x.argmax()).to(F64)
        return Values(
            (x - a5).abs().sum(), torch.sign(x - a5), (worst @ x - 0.5)[None], worst[None]
        )

    zero = torch.zeros(N, dtype=F64)
    return [
        Known(
            "P1",
            3,
            lambda x: Values(0.5 * (x - a1) @ (x - a1), x - a1, A @ x - b1, A),
            zero,
            x1,
            y1,
        ),
        Known(
            "P2",
            1,
            lambda x: Values(2 * unit @ x, 2 * unit, 0.5 * (x @ x - 1)[None], x[None]),
            zero,
            -unit,
            numbers(2),
        ),
        Known(
            "P3",
            1,
            lambda x: Values(0.5 * (x - a3) @ (x - a3), x - a3, 0.5 * (1 - x @ x)[None], -x[None]),
            a3 + 0.1,
            unit,
            numbers(0.6),
        ),
        Known(
            "P4",
            2,
            lambda x: Values(
                0.5 * (Q * x) @ x,
                Q * x,
                torch.cat([ends @ x - 1, -ends @ x - 1]),
                torch.cat([ends, -ends]),
            ),
            start4,
            ends[0],
            numbers(1, 0),
        ),
        Known("P5", 1, p5, zero, a5.clamp(max=0.5), numbers(3)),
    ]


def sample(problem: Known, scale_f: Tensor, scale_c: Tensor, noise: Tensor) -> Sample:
    """The problem times its scales; `noise` (n + m + m n,) is that of one mini-batch, normal, sd 1
    / sqrt(its size)."""
    of_g, of_c, of_J = noise.split([N, problem.m, problem.m * N])
    Z = 0.2 * of_J.reshape(problem.m, N)

    def at(x: Tensor) -> Estimate:
        f, g, c, J = problem.at(x)
        g, c, J = scale_f * (g + 0.5 * of_g), scale_c * (c + Z @ x + 0.5 * of_c), scale_c * (J + Z)
        return Estimate(scale_f * f, c, lambda w: w[0] * g + w[1:] @ J)

    return Sample(at)


def cases() -> list[tuple[float, float]]:
    """(scale of f, scale of c)"""
    return [(1.0, scale) for scale in SCALES] + [(scale, 1.0) for scale in SCALES if scale != 1.0]


def solve(
    problem: Known, methods: list[Algorithm[Any]], steps: int, sizes: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Errors and violations (methods, sizes of the noise, cases) of the mean of the last half.

    All methods are of one class.
    """
    grid = [(method, f, c, size) for method in methods for size in sizes for f, c in cases()]
    tables = [numbers_of(method) for method, *_ in grid]
    numbers = {
        name: torch.tensor([table[name] for table in tables], dtype=F64) for name in tables[0]
    }
    scale_f, scale_c, size = (
        torch.tensor([case[i] for case in grid], dtype=F64) for i in (1, 2, 3)
    )
    numbers["tau"] = numbers["tau"] / scale_f
    width = N + problem.m + problem.m * N
    generator = torch.Generator().manual_seed(1)

    def draw() -> list[Tensor]:
        return [torch.randn(width, dtype=F64, generator=generator) for _ in range(methods[0].draws)]

    def begin(own: dict[str, Tensor], f: Tensor, c: Tensor, size: Tensor, noise: Tensor) -> Any:
        x = problem.start
        return with_hyperparams(methods[0], own).init(
            x, problem.m, sample(problem, f, c, size * noise)(x)
        )

    def step(
        x: Tensor,
        state: Any,
        own: dict[str, Tensor],
        f: Tensor,
        c: Tensor,
        size: Tensor,
        noises: list[Tensor],
    ) -> Any:
        d, new = with_hyperparams(methods[0], own).update(
            x, state, Draw.of(*(sample(problem, f, c, size * noise) for noise in noises))
        )
        return x + d, new

    state = torch.func.vmap(begin, (0, 0, 0, 0, None))(numbers, scale_f, scale_c, size, draw()[0])
    x, mean = problem.start.expand(len(grid), N), torch.zeros(len(grid), N, dtype=F64)
    stepped = torch.func.vmap(step, (0, 0, 0, 0, 0, 0, None))
    for k in range(steps):
        x, state = stepped(x, state, numbers, scale_f, scale_c, size, draw())
        if 2 * k >= steps:
            mean += x / (steps - steps // 2)
    error = (mean - problem.x).norm(dim=-1) / (problem.start - problem.x).norm()
    violation = torch.stack([problem.at(one).c.max().clamp(min=0.0) for one in mean])
    shape = (len(methods), len(sizes), -1)
    return error.reshape(shape), violation.reshape(shape)


SETTINGS: dict[str, dict[str, Algorithm[Any]]] = {
    "DescentAscent": {"before": DescentAscent(tau=0.05, eta=0.005), "now": DescentAscent()},
    "Penalty": {"before": Penalty(tau=0.05, weight=0.4), "now": Penalty()},
    "SSLALM": {
        "before": SSLALM(tau=0.01, eta=0.05, rho=1.0, mu=2.0, beta=0.5, y_max=10.0),
        "now": SSLALM(),
    },
    # "before" are the settings of the methods' papers
    "PHRALM": {"before": PHRALM(tau=0.05, eta=0.05, rho=1.0), "now": PHRALM()},
    "NuPI": {"before": NuPI(tau=0.05, eta=0.05, kp=0.5), "now": NuPI()},
    "SPBM": {"before": SPBM(tau=0.05, t_max=inf), "now": SPBM()},
}


def table(steps: int, noisy: bool) -> Iterator[str]:
    labels = [f"c x {c:g}" if f == 1 else f"f x {f:g}" for f, c in cases()]
    yield f"{'':<28}" + "".join(f"{label:>14}" for label in labels)
    for name, settings in SETTINGS.items():
        for problem in known_problems():
            found = solve(problem, list(settings.values()), steps, [0.5 if noisy else 0.0])
            errors, violations = (one.squeeze(1) for one in found)
            for label, error, violation in zip(settings, errors, violations, strict=True):
                cells = [
                    f"{e:8.3f} ({v:.2f})"
                    for e, v in zip(error.tolist(), violation.tolist(), strict=True)
                ]
                yield f"{name:<16} {problem.name} {label:<8}" + "".join(
                    f"{cell:>14}" for cell in cells
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--noisy", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for line in table(options.steps, options.noisy):
        print(line, flush=True)


if __name__ == "__main__":
    main()
