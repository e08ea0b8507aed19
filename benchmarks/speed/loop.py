"""A step in a user's loop: `Constrained` beside plain SGD, Cooper, humancompatible-train and fairret, in one run.

    OMP_NUM_THREADS=1 python benchmarks/speed/loop.py [--rounds 60]

A 9-64-32-1 net, 64 rows for the objective and 32 of each of two groups for the constraint, all 128 in one forward pass;
the plain step is SGD on the mean loss of the same 128 rows. The groups are in the same places in every mini-batch, as
`BalancedBatches` puts them; one row has them shuffled. Each peer is used as its documentation does; one that is not
installed is named and left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from measuring import Checks, Contestant, alternate, machine
from setting import network
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from fairbound import Constrained, limits
from fairbound.algorithms import SSLALM, DescentAscent
from fairbound.core import Algorithm

LR, ETA, BOUND, STEPS = 0.05, 0.005, 0.02, 40
Step = Callable[[Tensor, Tensor, Tensor], None]


class Batches:
    """Mini-batches in turn, tensors of their own each: objective rows first, then those of the groups."""

    def __init__(self, shuffled: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        fixed = torch.arange(64) % 2
        orders = [torch.randperm(64, generator=generator) if shuffled else torch.arange(64) for _ in range(16)]
        self.objective = torch.arange(128) < 64
        self.made = [
            (
                torch.randn(128, 9, generator=generator),
                (torch.rand(128, generator=generator) < 0.4).float(),
                torch.cat([torch.full((64,), -1), fixed[order]]),
            )
            for order in orders
        ]
        self.turn = 0

    def steps(self, step: Step) -> Contestant:
        def work() -> int:
            for _ in range(STEPS):
                self.turn += 1
                step(*self.made[self.turn % len(self.made)])
            return STEPS

        return work


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR)


def plain() -> Step:
    model = network()
    optimiser = sgd(model)

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        optimiser.zero_grad()
        bce(model(X), y).backward()
        optimiser.step()

    return step


def constrained(method: Algorithm, objective: Tensor) -> Step:
    model = network()
    optimiser = sgd(model)
    fair = Constrained(model, limits.accuracy_equality(["A", "B"], bound=BOUND), method)

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        optimiser.zero_grad()
        losses = bce(model(X), y, reduction="none")
        fair.backward(losses, group, objective=objective)
        optimiser.step()

    return step


# Peers ----------------------------------------------------------------------------------------------------------------


def gaps(losses: Tensor, group: Tensor) -> Tensor:
    gap = losses[group == 0].mean() - losses[group == 1].mean()
    return torch.stack([gap, -gap]) - BOUND


def by_cooper() -> Step:
    import cooper

    class Parity(cooper.ConstrainedMinimizationProblem):
        def __init__(self) -> None:
            super().__init__()
            self.gap = cooper.Constraint(
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=cooper.formulations.Lagrangian,
                multiplier=cooper.multipliers.DenseMultiplier(num_constraints=2),
            )

        def compute_cmp_state(self, model: nn.Module, X: Tensor, y: Tensor, group: Tensor) -> cooper.CMPState:
            losses = bce(model(X), y, reduction="none")
            state = cooper.ConstraintState(violation=gaps(losses, group))
            return cooper.CMPState(losses[:64].mean(), {self.gap: state})

    model, problem = network(), Parity()
    optimiser = cooper.optim.SimultaneousOptimizer(
        cmp=problem,
        primal_optimizers=sgd(model),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=ETA, maximize=True),
    )

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        optimiser.roll(compute_cmp_state_kwargs={"model": model, "X": X, "y": y, "group": group})

    return step


def by_humancompatible(smoothed: bool) -> Step:
    """Its Lagrangian; `smoothed` with penalty and Moreau envelope, which is its SSL-ALM."""
    from humancompatible.train.dual_optim.alm import ALM
    from humancompatible.train.dual_optim.moreau import MoreauEnvelope

    model = network()
    optimiser = MoreauEnvelope(sgd(model), mu=2.0, beta=0.5) if smoothed else sgd(model)
    dual = ALM(m=2, lr=ETA, penalty=1.0 if smoothed else 0.0, is_ineq=True)

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        losses = bce(model(X), y, reduction="none")
        dual.forward_update(losses[:64].mean(), gaps(losses, group)).backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def by_fairret() -> Step:
    """Its regulariser of the positive rate: a penalty, so no multipliers."""
    from fairret.loss import NormLoss
    from fairret.statistic import PositiveRate

    model, regulariser = network(), NormLoss(PositiveRate())
    optimiser = sgd(model)

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        logits = model(X)
        one_hot = torch.stack([group[64:] == 0, group[64:] == 1], 1).float()
        loss = bce(logits[:64], y[:64]) + 0.5 * regulariser(logits[64:, None], one_hot)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


PEERS: dict[str, Callable[[], Step]] = {
    "Cooper, Lagrangian": by_cooper,
    "humancompatible-train, Lagrangian": lambda: by_humancompatible(False),
    "humancompatible-train, SSL-ALM-like": lambda: by_humancompatible(True),
    "fairret, regulariser": by_fairret,
}


def contestants() -> dict[str, Contestant]:
    same, shuffled = Batches(), Batches(shuffled=True)
    method = DescentAscent(tau=LR, eta=ETA)
    steps = {
        "plain SGD": plain(),
        "descent-ascent": constrained(method, same.objective),
        "SSL-ALM, one mini-batch": constrained(SSLALM(tau=LR, eta=ETA, samples=1), same.objective),
    }
    for name, made in PEERS.items():
        try:
            steps[name] = made()
        except ImportError as error:
            print(f"{name} is left out: {error}; pip install -r benchmarks/requirements.txt")
    found = {name: same.steps(step) for name, step in steps.items()}
    return found | {"descent-ascent, groups shuffled": shuffled.steps(constrained(method, shuffled.objective))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = alternate(contestants(), options.rounds, warm=2)
    base = found["plain SGD"]
    print(machine())
    for name, own in found.items():
        print(f"{name:<36} {own.cpu:7.1f} us CPU {own.wall:7.1f} us wall {own.cpu / base.cpu:6.2f} x plain")
    checks = Checks()
    checks.at_most("descent-ascent, plain steps", found["descent-ascent"].cpu / base.cpu, 1.15)
    checks.at_most("SSL-ALM with one mini-batch, plain steps", found["SSL-ALM, one mini-batch"].cpu / base.cpu, 1.4)
    for name in PEERS:
        if name in found and name.startswith("Cooper"):
            checks.at_most(f"descent-ascent against {name}", found["descent-ascent"].cpu / found[name].cpu, 0.5)
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
