"""Problems with known answers: quadratics, Hock-Schittkowski's, and P1 to P5 of
benchmarks/defaults.py.

Every problem whose functions are quadratic in x lives in one table: a row holds the coefficients of
f and of every c_i, so that noise is a choice of rows and all of them run in one stack.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound import BatchSpec, Dataset, Problem, Sampler, Split
from fairbound.constraints._cells import Cell, Cells
from fairbound.constraints._constraint import FunctionConstraint
from fairbound.core import Algorithm, Draw

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import defaults

F64 = torch.float64
N, M = 3, 4  # all problems of the table are padded to 3 variables and 4 constraints
# of one function: quadratic, linear, constant, weights and kinks of |x - kink|
BLOCK = N * N + N + 1 + 2 * N
LINEAR, CONSTANT = slice(N * N, N * N + N), N * N + N


@dataclass(frozen=True)
class Known:
    """A problem's rows and its answer."""

    name: str
    rows: Tensor  # (rows, coefficients)
    start: Tensor  # (N,)
    x: Tensor  # (N,) solution
    y: Tensor  # (M,) multipliers


def quadratic(
    Q: list[list[float]], q: list[float], r: float, kinked: tuple[float, float] = (0.0, 0.0)
) -> Tensor:
    """1/2 x'Qx + q'x + r + weight |x_1 - kink|, padded to N variables: (BLOCK,)."""
    n = len(q)
    full = torch.zeros(N, N, dtype=F64)
    full[:n, :n] = torch.tensor(Q, dtype=F64)
    weight, kink = pad([kinked[0]], N), pad([kinked[1]], N)
    return torch.cat([full.flatten(), pad(q, N), torch.tensor([r], dtype=F64), weight, kink])


def row(f: Tensor, *c: Tensor) -> Tensor:
    """One row: objective and constraints; missing constraints are c = -1."""
    return torch.cat([f, *c, *[quadratic([[0.0]], [0.0], -1.0)] * (M - len(c))])


def evaluate(x: Tensor, inputs: Tensor) -> Tensor:
    """(B, 1+M) values of [f, c] of every row at x."""
    table = inputs.unflatten(-1, (1 + M, BLOCK))
    Q, (weight, kink) = table[..., : N * N].unflatten(-1, (N, N)), table[..., -2 * N :].split(N, -1)
    smooth = (
        0.5 * torch.einsum("bkij,i,j->bk", Q, x, x) + table[..., LINEAR] @ x + table[..., CONSTANT]
    )
    return smooth + (weight * (x - kink).abs()).sum(-1)


def pad(values: list[float], size: int) -> Tensor:
    out = torch.zeros(size, dtype=F64)
    out[: len(values)] = torch.tensor(values, dtype=F64)
    return out


def known(name: str, rows: Tensor, start: list[float], x: list[float], y: list[float]) -> Known:
    return Known(name, rows.reshape(-1, rows.shape[-1]), pad(start, N), pad(x, N), pad(y, M))


def ball() -> Known:
    """x_1 + x_2 with |x|^2 <= 2."""
    circle = quadratic([[2.0, 0.0], [0.0, 2.0]], [0.0, 0.0], -2.0)
    return known(
        "ball", row(quadratic([[0.0] * 2] * 2, [1.0, 1.0], 0.0), circle), [-0.5, 0], [-1, -1], [0.5]
    )


def nonsmooth() -> Known:
    """|x - 2| with |x| <= 1: for switching, whose theory allows kinks."""
    rows = row(
        quadratic([[0.0]], [0.0], 0.0, (1.0, 2.0)), quadratic([[0.0]], [0.0], -1.0, (1.0, 0.0))
    )
    return known("abs", rows, [-0.5], [1], [1])


def infeasible() -> Known:
    """x^2 with x <= -1 and x >= 1: the least violation is 1, at 0; there are no multipliers."""
    rows = row(
        quadratic([[2.0]], [0.0], 0.0),
        quadratic([[0.0]], [1.0], 1.0),
        quadratic([[0.0]], [-1.0], 1.0),
    )
    return known("infeasible", rows, [0.7], [0], [])


def normal_rows(rows: int, width: int, seed: int) -> Tensor:
    """Standard normal rows whose empirical mean is exactly 0, so that the table's own optimum is
    the closed form."""
    noise = torch.randn(rows, width, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return noise - noise.mean(0)


def sample_bias(s: float = 0.5) -> Known:
    """F = (x-2)^2/2, c = (1+zeta) x - 1, zeta = +-s: the multiplier tells a re-used sample from an
    independent one."""
    rows = torch.stack(
        [
            row(quadratic([[1.0]], [-2.0], 2.0), quadratic([[0.0]], [1.0 + sign * s], -1.0))
            for sign in (-1, 1)
        ]
    )
    return known("bias", rows, [1], [1], [1])


def penalty_bias(s: float = 0.5) -> Known:
    """S2: x^2/2 with E[zeta x] >= 1, zeta = 1 +- s, as the one inequality that is active."""
    rows = torch.stack(
        [
            row(quadratic([[1.0]], [0.0], 0.0), quadratic([[0.0]], [-1.0 - sign * s], 1.0))
            for sign in (-1, 1)
        ]
    )
    return known("S2", rows, [0.8], [1], [1])


def noisy_test(y: float, sd: float = 0.5, rows: int = 20_000) -> Known:
    """F = -y x, c = x - 1 + noise: the multiplier is y everywhere and the noise is in the test
    alone."""
    table = row(quadratic([[0.0]], [-y], 0.0), quadratic([[0.0]], [1.0], -1.0)).repeat(rows, 1)
    table.unflatten(1, (1 + M, BLOCK))[:, 1, CONSTANT] += sd * normal_rows(rows, 1, seed=4)[:, 0]
    return known("noisy test", table, [1], [1], [y])


def table_of(problems: list[Known]) -> tuple[Problem, list[Split], Cells]:
    """All problems in one table; problem i's rows are the train pool of split i."""
    X = torch.cat([p.rows for p in problems])
    cells = Cells((Cell("all"),), (torch.arange(len(X)),))
    names, data = tuple(f"c{i}" for i in range(M)), Dataset(X, torch.zeros(len(X), dtype=F64))
    constraint = FunctionConstraint(
        lambda batch: batch.outputs.mean(0)[1:], names, cells, mean=True
    )
    problem = Problem(evaluate, lambda outputs, labels: outputs[:, 0], constraint, data)
    splits, start = [], 0
    for p in problems:
        splits.append(Split(torch.arange(start, start + len(p.rows))))
        start += len(p.rows)
    return problem, splits, cells


def sampler_for(
    split: Split, cells: Cells, batch: int, test: int | None = None, seed: int = 0
) -> Sampler:
    """Batches of `batch` rows (one where the problem has a single row); `test` rows for switching's
    first draw."""
    size = min(batch, len(split.train))
    same = BatchSpec(size, size)
    return Sampler(
        split,
        cells,
        same if test is None else (BatchSpec(size, min(test, len(split.train))), same),
        seed,
    )


@dataclass(frozen=True)
class HockSchittkowski:
    """min f(x) s.t. c(x) = 0 from Hock and Schittkowski, Test Examples for Nonlinear Programming
    Codes (1981)."""

    number: int
    f: Callable[[Tensor], Tensor]
    c: Callable[[Tensor], Tensor]  # (m,)
    start: Tensor
    x: Tensor
    y: Tensor  # multipliers: grad f + J'y = 0

    def noisy(self, x: Tensor, noise: Tensor) -> Tensor:
        """(B, 1+m) [f, c] of every row of `noise` (B, n+m), which is added to grad f and to c."""
        of_f, of_c = noise.split([len(self.x), len(self.y)], -1)
        return torch.cat([self.f(x) + (of_f @ x)[:, None], self.c(x) + of_c], -1)

    def problem(self, noise: float = 0.0, rows: int = 20_000) -> tuple[Problem, Sampler]:
        """For `run`; mini-batches of one row."""
        width = len(self.x) + len(self.y)
        X = (
            noise * normal_rows(rows, width, self.number)
            if noise
            else torch.zeros(1, width, dtype=F64)
        )
        cells = Cells((Cell("all"),), (torch.arange(len(X)),))
        names = tuple(f"h{i}" for i in range(len(self.y)))
        constraint = FunctionConstraint(
            lambda batch: batch.outputs.mean(0)[1:], names, cells, equality=True, mean=True
        )
        data = Dataset(X, torch.zeros(len(X), dtype=F64))
        return Problem(
            self.noisy, lambda outputs, labels: outputs[:, 0], constraint, data
        ), sampler_for(Split.all_train(len(X)), cells, 1)


def _hs(
    number: int, f: Any, c: Any, start: list[float], x: list[float], y: list[float]
) -> HockSchittkowski:
    def stacked(point: Tensor) -> Tensor:
        return torch.stack(c(*point.unbind()))

    numbers = (torch.tensor(values, dtype=F64) for values in (start, x, y))
    return HockSchittkowski(number, lambda point: f(*point.unbind()), stacked, *numbers)


HS = {
    one.number: one
    for one in (
        _hs(6, lambda a, b: (1 - a) ** 2, lambda a, b: [10 * (b - a**2)], [-1.2, 1], [1, 1], [0]),
        _hs(
            26,
            lambda a, b, c: (a - b) ** 2 + (b - c) ** 4,
            lambda a, b, c: [(1 + b**2) * a + c**4 - 3],
            [-2.6, 2, 2],
            [1, 1, 1],
            [0],
        ),
        _hs(
            27,
            lambda a, b, c: 0.01 * (a - 1) ** 2 + (b - a**2) ** 2,
            lambda a, b, c: [a + c**2 + 1],
            [2, 2, 2],
            [-1, 1, 0],
            [0.04],
        ),
        _hs(
            28,
            lambda a, b, c: (a + b) ** 2 + (b + c) ** 2,
            lambda a, b, c: [a + 2 * b + 3 * c - 1],
            [-4, 1, 1],
            [0.5, -0.5, 0.5],
            [0],
        ),
        _hs(
            39,
            lambda a, b, c, d: -a,
            lambda a, b, c, d: [b - a**3 - c**2, a**2 - b - d**2],
            [2, 2, 2, 2],
            [1, 1, 0, 0],
            [-1, -1],
        ),
        _hs(
            40,
            lambda a, b, c, d: -a * b * c * d,
            lambda a, b, c, d: [a**3 + b**2 - 1, a**2 * d - c, d**2 - b],
            [0.8, 0.8, 0.8, 0.8],
            [2 ** (-1 / 3), 2 ** (-1 / 2), 2 ** (-11 / 12), 2 ** (-1 / 4)],
            [0.5, -(2 ** (-13 / 12)), 2 ** (-3 / 2)],
        ),
    )
}


# P1 to P5 of benchmarks/defaults.py ---------------------------------------------------------------

KNOWN = {problem.name: problem for problem in defaults.known_problems()}
ONE = torch.ones((), dtype=F64)


class Errors(NamedTuple):
    """Of the means over the last half of the steps, for every replicate."""

    x: Tensor  # (replicates,) |x - x*|
    violation: Tensor  # (replicates,) largest entry of [C(x)]_+, without noise
    y: Tensor  # (replicates,) |y - y*|; NaN for a method without multipliers

    def medians(self) -> tuple[float, float, float]:
        x, violation, y = (float(part.median()) for part in self)
        return x, violation, y


def errors(
    method: Algorithm[Any], name: str, steps: int, batch: float = 4, replicates: int = 32
) -> Errors:
    """Errors of `method` on the problem `name`, as one stack of replicates; mini-batches of `batch`
    examples.

    Noise of one example: sd 0.5 on every entry of grad f and c, 0.2 on J, where c sees the noise of
    J (c + Zx), so that products of one mini-batch are biased as in training. A mini-batch of B
    examples has 1/B of the variance.
    """
    problem, generator = KNOWN[name], torch.Generator().manual_seed(0)
    width = defaults.N + problem.m + problem.m * defaults.N

    def noise(draws: int) -> Tensor:
        return batch**-0.5 * torch.randn(replicates, draws, width, dtype=F64, generator=generator)

    def begin(x: Tensor, rows: Tensor) -> Any:
        return method.init(x, problem.m, defaults.sample(problem, ONE, ONE, rows[0])(x))

    def step(x: Tensor, state: Any, rows: Tensor) -> Any:
        d, new = method.update(
            x, state, Draw.of(*(defaults.sample(problem, ONE, ONE, row) for row in rows))
        )
        y = method.multipliers(new)
        return x + d, new, torch.full_like(problem.y, torch.nan) if y is None else y

    x = problem.start.expand(replicates, -1)
    state = torch.func.vmap(begin)(x, noise(1))
    mean_x, mean_y = torch.zeros_like(x), torch.zeros(replicates, problem.m, dtype=F64)
    stepped = torch.func.vmap(step)
    for k in range(steps):
        x, state, y = stepped(x, state, noise(method.draws))
        if 2 * k >= steps:
            mean_x, mean_y = mean_x + x / (steps - steps // 2), mean_y + y / (steps - steps // 2)
    violation = torch.func.vmap(lambda point: problem.at(point).c.max().clamp(min=0.0))(mean_x)
    return Errors((mean_x - problem.x).norm(dim=-1), violation, (mean_y - problem.y).norm(dim=-1))
