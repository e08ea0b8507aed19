"""Every algorithm on S3, the two-group loss gap whose optimum is known in closed form.

    min 1/2 E (x'z - y)^2   s.t.  |loss of A - loss of B| <= .05          5 variables, 600 + 200
    rows

Prints how far each method's averaged iterate ends from the optimum, in distance, loss gap and
multipliers.
"""

from __future__ import annotations

import argparse
import platform
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from fairbound import BatchSpec, Dataset, Problem, Sampler, Split, run
from fairbound.algorithms import (
    SGD,
    SSLALM,
    DescentAscent,
    Penalty,
    StochasticGhost,
    SwitchingSubgradient,
)
from fairbound.algorithms.schedules import Linear, Power
from fairbound.constraints import pairwise_loss_parity
from fairbound.core import Algorithm

F64 = torch.float64


@dataclass(frozen=True)
class TwoGroups:
    """S3: least squares with a bound on the gap of two groups' losses; whitened within groups, so
    solvable by hand."""

    problem: Problem
    split: Split
    x: Tensor  # (n,)
    y: Tensor  # (2,)


def two_groups(
    n: int = 5, per_group: tuple[int, int] = (600, 200), bound: float = 0.05, seed: int = 3
) -> TwoGroups:
    generator = torch.Generator().manual_seed(seed)
    inputs, labels, centres, spreads = (
        list[Tensor](),
        list[Tensor](),
        list[Tensor](),
        list[Tensor](),
    )
    for g, size in enumerate(per_group):
        raw = torch.randn(size, n, dtype=F64, generator=generator)
        chol = torch.linalg.cholesky(raw.T @ raw / size)
        X = torch.linalg.solve_triangular(chol, raw.T, upper=False).T  # X'X / size = I
        truth = torch.randn(n, dtype=F64, generator=generator) * (1.0 if g == 0 else 0.6)
        y = X @ truth + (0.3 if g == 0 else 0.9) * torch.randn(size, dtype=F64, generator=generator)
        centre = X.T @ y / size
        inputs, labels, centres = [*inputs, X], [*labels, y], [*centres, centre]
        spreads.append(y.square().mean() - centre @ centre)
    (ta, tb), (sa, sb) = centres, spreads
    share = per_group[0] / sum(per_group)
    k, c0 = tb - ta, 0.5 * (ta @ ta - tb @ tb + sa - sb)
    mean = share * ta + (1 - share) * tb
    gap = k @ mean + c0
    y = torch.stack([(gap - bound).clamp(min=0) / (k @ k), (-gap - bound).clamp(min=0) / (k @ k)])
    groups = torch.repeat_interleave(torch.arange(2), torch.tensor(per_group))
    data = Dataset(torch.cat(inputs), torch.cat(labels), {"group": groups}, source="S3")
    constraint = pairwise_loss_parity(2, bound=bound).bind(groups)
    problem = Problem(
        lambda x, X: X @ x, lambda out, label: 0.5 * (out - label) ** 2, constraint, data
    )
    return TwoGroups(problem, Split.all_train(sum(per_group)), mean - (y[0] - y[1]) * k, y)


def methods(steps: int) -> dict[str, tuple[Algorithm, int, object]]:
    """name -> algorithm, steps, rows it takes; Ghost makes a fifth of the steps, with some 6 times
    the rows each."""
    batch, falling = BatchSpec(16, 16), Linear(0.05, steps)
    return {
        "SGD": (SGD(tau=falling), steps, batch),
        "Penalty": (Penalty(tau=falling, weight=0.4), steps, batch),
        "DescentAscent": (DescentAscent(tau=falling, eta=Linear(0.02, steps)), steps, batch),
        "SSLALM": (SSLALM(tau=Linear(0.02, steps), eta=Linear(0.02, steps), rho=0.5), steps, batch),
        "ALM (mu = 0)": (
            SSLALM(tau=Linear(0.02, steps), eta=Linear(0.02, steps), rho=0.5, mu=0.0),
            steps,
            batch,
        ),
        "SwitchingSubgradient": (
            SwitchingSubgradient(eta_f=falling, eta_c=falling),
            steps,
            (BatchSpec(16, 128), BatchSpec(16, 16)),
        ),
        "StochasticGhost": (StochasticGhost(schedule=Power(0.5, 0.6), p0=0.6), steps // 5, batch),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    known = two_groups()
    train = known.split.train
    best = known.problem.evaluate(known.x[None], train)
    print(
        f"S3, {arguments.seeds} seeds, torch {torch.__version__}, Python"
        f" {platform.python_version()}, one thread"
    )
    print(
        f"optimum: loss {best.loss[0]:.4f}, gap at its bound of .05, multipliers (0,"
        f" {known.y[1]:.3f})\n"
    )
    print(
        f"{'method':<21}{'steps':>6}{'|x-x*|/|x*|':>12}{'loss':>8}{'violation':>10}{'|y-y*|':>8}{'ms/step':>8}"
    )
    for name, (method, steps, sizes) in methods(arguments.steps).items():
        sampler = Sampler(known.split, known.problem.constraint.cells, sizes)
        samplers = sampler.seeded(*range(arguments.seeds))
        start = time.perf_counter()
        result = run(
            known.problem,
            method,
            samplers,
            torch.zeros(5, dtype=torch.float64),
            steps,
            average_from=steps // 2,
        ).result()
        seconds = time.perf_counter() - start
        error = ((result.mean_x - known.x).norm(dim=1) / known.x.norm()).median()
        measured = known.problem.evaluate(result.mean_x, train)
        multipliers = (result.mean_multipliers - known.y).abs().amax(1).median()
        shown = "-" if multipliers.isnan() else f"{multipliers:.3f}"
        print(
            f"{name:<21}{steps:>6}{error:>12.4f}{measured.loss.median():>8.4f}"
            f"{measured.c.amax(1).clamp(min=0).median():>10.4f}{shown:>8}"
            f"{1e3 * seconds / steps:>8.2f}"
        )
    print(
        "\nSGD ignores the bound; Penalty stops where its weight says. Violation and loss are on"
        " all rows."
    )
    print(
        "Medians over seeds of the mean iterate over the second half. ms/step is for all seeds"
        " together."
    )


if __name__ == "__main__":
    main()
