"""`Constrained(normalize=True)` over the scales of the constraints, on problems P1 to P5 with known solutions.

    OMP_NUM_THREADS=1 python benchmarks/normalize.py [--steps 4000] [--noisy]

Prints the error |x - x*| / |x_0 - x*| of the mean of the last half of the steps, at default settings, with c multiplied
by .01 to 1,000: without normalization the settings belong to the size of c; with it they do not.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from defaults import F64, Known, known_problems
from torch import nn

from fairbound import Constrained, constraints
from fairbound.algorithms import SSLALM, DescentAscent
from fairbound.core import Algorithm

SCALES = (0.01, 0.1, 1.0, 10.0, 50.0, 1000.0)
METHODS = {"DescentAscent": (DescentAscent(), 0.05), "SSLALM, one batch": (SSLALM(samples=1), 0.01)}  # with the step


def error(
    problem: Known, method: Algorithm, lr: float, scale: float, normalize: bool, steps: int, noise: float
) -> float:
    """Of one run in a loop."""
    generator = torch.Generator().manual_seed(0)
    x = nn.Parameter(problem.start.clone())
    names = [f"c{i}" for i in range(problem.m)]
    fair = Constrained([x], constraints.given(*names), method, normalize=normalize)
    total = torch.zeros_like(problem.x)
    for k in range(steps):
        at = problem.at(x.detach())

        def noisy(values: torch.Tensor, size: float) -> torch.Tensor:
            return values + noise * size * torch.randn(values.shape, dtype=F64, generator=generator)

        g, c, J = noisy(at.g, 0.5), noisy(at.c, 0.5), noisy(at.J, 0.2)
        x.grad = None
        moved = x - x.detach()  # 0, with the gradient of x
        fair.backward((at.f + g @ moved).reshape(1), values=dict(zip(names, scale * (c + J @ moved), strict=True)))
        if x.grad is None:  # skipped: something was not finite
            break
        with torch.no_grad():
            x -= lr * x.grad
        if k >= steps // 2:
            total += x.detach()
    mean = total / (steps - steps // 2)
    return float((mean - problem.x).norm() / (problem.start - problem.x).norm())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--noisy", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    torch.set_num_threads(1)
    print(f"{'':30}" + "".join(f"{f'x {scale:g}':>9}" for scale in SCALES))
    for name, (method, lr) in METHODS.items():
        for normalize in (False, True):
            print(f"{name}, normalize={normalize}")
            for problem in known_problems():
                found = [
                    error(problem, method, lr, scale, normalize, given.steps, 0.5 if given.noisy else 0.0)
                    for scale in SCALES
                ]
                print(f"    {problem.name:26}" + "".join(f"{min(value, 99.0):9.2f}" for value in found), flush=True)


if __name__ == "__main__":
    main()
