"""Equality constraints on problems of Hock and Schittkowski, by every method that takes them, in `run` and in a loop.

What a method cannot do is a test as well: descent-ascent diverges on problem 40, whose Lagrangian has negative
curvature, and from the starting points of 6 and 26 at the steps that suit the others.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from problems import HS, HockSchittkowski
from torch import Tensor, nn

from fairbound import Constrained, MiniBatch, constraints, run
from fairbound.algorithms import (
    SSLALM,
    Adaptive,
    DescentAscent,
    Penalty,
    StochasticGhost,
    SwitchingSubgradient,
)
from fairbound.algorithms.schedules import Exponential, Linear
from fairbound.core import Algorithm

F64 = torch.float64
Solved = tuple[Algorithm[Any], int]  # with its steps


def ghost(steps: int, step: float = 0.5, tau: float = 1.0, end: float = 0.1) -> Solved:
    return StochasticGhost(schedule=Linear(step, steps, end), tau=tau, beta=5.0, cap=0), steps


def switching(steps: int, eta: float, eps: float, decay: float) -> Solved:
    ratio = 1 - decay / steps
    settings = {"eta_f": Exponential(eta, ratio), "eta_c": Adaptive(), "eps": Exponential(eps, ratio)}
    return SwitchingSubgradient(**settings), steps


def penalty(steps: int, tau: float, weight: float, decay: float) -> Solved:
    return Penalty(tau=Exponential(tau, 1 - decay / steps), weight=weight), steps


def augmented(mu: float) -> dict[int, Solved]:
    return {n: (SSLALM(tau=0.02, eta=0.1, rho=1.0 if n == 39 else 3.0, mu=mu), 1500) for n in (28, 39, 40)} | {
        27: (SSLALM(tau=0.05, eta=0.1, rho=1.0, mu=mu), 3000)
    }


SMOOTH: dict[str, dict[int, Solved]] = {
    "DescentAscent": {n: (DescentAscent(tau=0.05, eta=0.1), 1500) for n in (28, 39)},
    "DescentAscent, normalized": {n: (DescentAscent(tau=0.05, eta=0.1, normalized_step=True), 2000) for n in (28, 39)},
    "SSLALM": augmented(1.0),
    "ALM": augmented(0.0),
    "StochasticGhost": {n: ghost(200) for n in (28, 39, 40)},
}
# |c| has a kink: steps that fall by a constant factor, and many of them.
SLOW: dict[str, dict[int, Solved]] = {
    "Penalty": {28: penalty(12_000, 0.1, 0.1, 10), 39: penalty(12_000, 0.03, 1.5, 10)},
    "SwitchingSubgradient": {28: switching(10_000, 0.2, 0.02, 9), 39: switching(10_000, 0.1, 0.1, 9)},
    "StochasticGhost": {27: ghost(4000, 1.0, 10.0, 0.5)},
}
CASES = [
    pytest.param(n, *solved, id=f"{name}-{n}", marks=[pytest.mark.slow] if table is SLOW else [])
    for table in (SMOOTH, SLOW)
    for name, by_number in table.items()
    for n, solved in by_number.items()
]


@pytest.mark.parametrize("problem", HS.values(), ids=HS)
def test_the_solution_is_a_kkt_point(problem: HockSchittkowski) -> None:
    assert problem.c(problem.x).abs().max() <= 1e-8
    slope = torch.func.grad(problem.f)(problem.x) + problem.y @ torch.func.jacrev(problem.c)(problem.x)
    assert slope.abs().max() <= 1e-8


def by_run(problem: HockSchittkowski, method: Algorithm[Any], steps: int, noise: float = 0.0) -> tuple[Tensor, Tensor]:
    """The last point and multipliers; with noise their means over the last half."""
    made, sampler = problem.problem(noise)
    average = steps // 2 if noise else None
    result = run(made, method, sampler, problem.start, steps, average_from=average, compile=False).result()
    if noise:
        return result.mean_x[0], result.mean_multipliers[0]
    return result.x[0], result.multipliers[0]


class Point(nn.Module):
    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x.clone())


class Loop:
    """`Constrained` on a model whose parameters are x."""

    def __init__(self, problem: HockSchittkowski, method: Algorithm[Any], noise: float = 0.0) -> None:
        self.problem, self.model, self.noise = problem, Point(problem.start), noise
        self.generator = torch.Generator().manual_seed(0)
        names = [f"h{i}" for i in range(len(problem.y))]
        c = constraints.function(lambda batch: batch.outputs.mean(0)[1:], *names, equality=True)
        self.fair = Constrained(self.model, c, method)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.fair.start(self.batch())

    def batch(self, size: int = 1) -> MiniBatch:
        noise = torch.randn(size, len(self.problem.x) + len(self.problem.y), dtype=F64, generator=self.generator)
        outputs = self.problem.noisy(self.model.x, self.noise * noise)
        return MiniBatch(outputs[:, 0], outputs=outputs)

    def run(self, steps: int) -> tuple[Tensor, Tensor]:
        points = []
        for _ in range(steps):
            self.optimizer.param_groups[0]["lr"] = self.fair.primal_step
            self.optimizer.zero_grad()
            self.fair.backward_closure(self.batch)
            self.optimizer.step()
            points.append(self.model.x.detach().clone())
        y = torch.tensor([*self.fair.multipliers.values()], dtype=F64)
        return torch.stack(points[steps // 2 :]).mean(0) if self.noise else points[-1], y


def check(problem: HockSchittkowski, x: Tensor, y: Tensor, within: float) -> None:
    assert (x - problem.x).abs().max() < within
    if y.numel() and y.isfinite().all():
        assert (y - problem.y).abs().max() < max(within, 1e-3)


@pytest.mark.parametrize(("number", "method", "steps"), CASES)
def test_by_run(number: int, method: Algorithm[Any], steps: int) -> None:
    check(HS[number], *by_run(HS[number], method, steps), within=1e-4)


@pytest.mark.parametrize(("number", "method", "steps"), CASES)
def test_in_a_loop(number: int, method: Algorithm[Any], steps: int) -> None:
    check(HS[number], *Loop(HS[number], method).run(steps), within=1e-4)
