"""A step in a user's loop: `Constrained` beside plain SGD and Cooper's Lagrangian, in one run.

    OMP_NUM_THREADS=1 python benchmarks/loop.py [--rounds 60] [--steps 40]

A 9-64-32-1 net, 64 rows for the objective and 32 of each of two groups for the constraint, all 128 in one forward pass;
the plain step is SGD on the mean loss of the same 128 rows. The groups are in the same places in every mini-batch, as
`BalancedBatches` puts them; one row has them shuffled. Contestants alternate; medians of CPU time per step. Exits
with 1 where a target is missed: descent-ascent at most 1.15 plain steps, SSL-ALM with one mini-batch at most 1.4,
descent-ascent less than half of Cooper's.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from fairbound import Constrained, limits
from fairbound.algorithms import SSLALM, DescentAscent
from fairbound.core import Algorithm

try:
    import cooper
except ImportError:
    cooper = None

LR, ETA, BOUND = 0.05, 0.005, 0.02
Step = Callable[[], None]


class Data:
    """Mini-batches in turn, tensors of their own each: objective rows first, then those of the groups."""

    def __init__(self, shuffled: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        fixed = torch.arange(64) % 2
        self.objective = torch.arange(128) < 64
        self.batches = [
            (
                torch.randn(128, 9, generator=generator),
                (torch.rand(128, generator=generator) < 0.4).float(),
                torch.cat(
                    [torch.full((64,), -1), fixed[torch.randperm(64, generator=generator)] if shuffled else fixed]
                ),
            )
            for _ in range(16)
        ]
        self.turn = 0

    def next(self) -> tuple[Tensor, Tensor, Tensor]:
        self.turn += 1
        return self.batches[self.turn % len(self.batches)]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))


def plain(data: Data) -> Step:
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)

    def step() -> None:
        X, y, _ = data.next()
        optimiser.zero_grad()
        bce(model(X)[:, 0], y).backward()
        optimiser.step()

    return step


def constrained(data: Data, method: Algorithm) -> Step:
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    fair = Constrained(model, limits.accuracy_equality(["A", "B"], bound=BOUND), method)

    def step() -> None:
        X, y, group = data.next()
        optimiser.zero_grad()
        losses = bce(model(X)[:, 0], y, reduction="none")
        fair.backward(losses, group, objective=data.objective)
        optimiser.step()

    return step


def by_cooper(data: Data) -> Step:
    """The same problem as Cooper's documentation writes one."""

    class Parity(cooper.ConstrainedMinimizationProblem):
        def __init__(self) -> None:
            super().__init__()
            self.gap = cooper.Constraint(
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=cooper.formulations.Lagrangian,
                multiplier=cooper.multipliers.DenseMultiplier(num_constraints=2),
            )

        def compute_cmp_state(self, model: nn.Module, X: Tensor, y: Tensor, group: Tensor) -> cooper.CMPState:
            losses = bce(model(X)[:, 0], y, reduction="none")
            gap = losses[group == 0].mean() - losses[group == 1].mean()
            violation = torch.stack([gap, -gap]) - BOUND
            return cooper.CMPState(losses[:64].mean(), {self.gap: cooper.ConstraintState(violation=violation)})

    model, problem = network(), Parity()
    optimiser = cooper.optim.SimultaneousOptimizer(
        cmp=problem,
        primal_optimizers=torch.optim.SGD(model.parameters(), lr=LR),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=ETA, maximize=True),
    )

    def step() -> None:
        X, y, group = data.next()
        optimiser.roll(compute_cmp_state_kwargs={"model": model, "X": X, "y": y, "group": group})

    return step


def medians(contestants: dict[str, Step], rounds: int, steps: int) -> dict[str, float]:
    """Microseconds of CPU time a step."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 2):
        for name, step in contestants.items():
            start = time.process_time()
            for _ in range(steps):
                step()
            if turn >= 2:  # the first rounds warm up
                times[name].append((time.process_time() - start) / steps * 1e6)
    return {name: statistics.median(own) for name, own in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, shuffled = Data(), Data(shuffled=True)
    contestants = {
        "plain SGD": plain(data),
        "descent-ascent": constrained(data, DescentAscent(tau=LR, eta=ETA)),
        "the same, groups shuffled": constrained(shuffled, DescentAscent(tau=LR, eta=ETA)),
        "SSL-ALM, one mini-batch": constrained(data, SSLALM(tau=LR, eta=ETA, samples=1)),
    }
    if cooper is None:
        print("Cooper is not installed and left out: pip install cooper-optim==1.0.1")
    else:
        contestants["Cooper, Lagrangian"] = by_cooper(data)
    found = medians(contestants, options.rounds, options.steps)
    base = found["plain SGD"]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, 1 thread")
    for name, own in found.items():
        print(f"{name:<26} {own:8.1f} us {own / base:7.2f} x plain")
    checks = {
        "descent-ascent <= 1.15 x plain": found["descent-ascent"] <= 1.15 * base,
        "SSL-ALM <= 1.4 x plain": found["SSL-ALM, one mini-batch"] <= 1.4 * base,
    }
    if cooper is not None:
        checks["descent-ascent < half of Cooper"] = found["descent-ascent"] < 0.5 * found["Cooper, Lagrangian"]
    for claim, met in checks.items():
        print(f"{'met   ' if met else 'MISSED'} {claim}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
