"""A step in a user's loop: `Constrained` beside plain SGD, Cooper, humancompatible-train and fairret, in one run.

    OMP_NUM_THREADS=1 python benchmarks/speed/loop.py [--rounds 60]

A 9-64-32-1 net, 64 rows for the objective and 32 of each of two groups for the constraint, all 128 in one forward pass;
the plain step is SGD on the mean loss of the same 128 rows. Two settings:

- fixed: the groups have the same places in every mini-batch, as `BalancedBatchSampler` puts them. `Constrained` is told
  nothing: it compares the groups with those before and keeps what it made of them. A peer's user, who writes the
  constraint by hand, may read them by slices. The targets are judged here.
- shuffled: the groups are anywhere, and a peer's user has masks.

Cooper is measured with fixed groups in three ways: by masks, the code that most users write, against which the target
is judged since it gets what ours gets, the mini-batch and its groups; by slices; and by a matrix made once. Each peer
is used as its documentation does; one that is not installed is named and skipped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from measuring import Checks, Contestant, Rounds, alternate, machine, skip
from setting import network
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from fairbound import Constrained, constraints
from fairbound.algorithms import SSLALM, DescentAscent
from fairbound.core import Algorithm

LR, ETA, BOUND, STEPS = 0.05, 0.005, 0.02, 40
COOPER = "Cooper, Lagrangian"
Step = Callable[[Tensor, Tensor, Tensor], None]


class Batches:
    """Mini-batches in turn, tensors of their own each: objective rows first, then those of the groups."""

    def __init__(self, shuffled: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        fixed = torch.arange(64) // 32  # as `BalancedBatchSampler` lists them: all of group 0, then all of group 1
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
    optimizer = sgd(model)

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        optimizer.zero_grad()
        bce(model(X), y).backward()
        optimizer.step()

    return step


def constrained(method: Algorithm[Any], objective: Tensor) -> Step:
    model = network()
    optimizer = sgd(model)
    fair = Constrained(model, constraints.pairwise_loss_parity(["A", "B"], bound=BOUND), method)

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        optimizer.zero_grad()
        losses = bce(model(X), y, reduction="none")
        fair.backward(losses, group, objective=objective)
        optimizer.step()

    return step


# Peers ----------------------------------------------------------------------------------------------------------------


class BatchStatistics(NamedTuple):
    """How code written by hand reads the groups of a mini-batch."""

    gaps: Callable[[Tensor, Tensor], Tensor]  # (128,) losses, (128,) groups -> both sides of the gap, less the bound
    one_hot: Callable[[Tensor], Tensor]  # groups -> (64, 2) members


def both_sides(means: Tensor) -> Tensor:
    return means - means.flip(0) - BOUND


def gaps_by_slices(losses: Tensor, group: Tensor) -> Tensor:
    return both_sides(losses[64:].view(2, 32).mean(1))


def gaps_by_masks(losses: Tensor, group: Tensor) -> Tensor:
    return both_sides(torch.stack([losses[group == 0].mean(), losses[group == 1].mean()]))


def gaps_by_matrix(losses: Tensor, group: Tensor) -> Tensor:
    return SIDES @ losses - BOUND


MEMBERS = torch.eye(2).repeat_interleave(32, 0)
SIDES = torch.cat([torch.zeros(2, 64), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat_interleave(32, 1) / 32], 1)

SLICES = BatchStatistics(gaps_by_slices, lambda group: MEMBERS)
MATRIX = BatchStatistics(
    gaps_by_matrix, lambda group: MEMBERS
)  # fewer operations than slices, if the peer's user thinks of it
MASKS = BatchStatistics(gaps_by_masks, lambda group: torch.stack([group[64:] == 0, group[64:] == 1], 1).float())


def by_cooper(read: BatchStatistics) -> Step:
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
            state = cooper.ConstraintState(violation=read.gaps(losses, group))
            return cooper.CMPState(losses[:64].mean(), {self.gap: state})

    model, problem = network(), Parity()
    optimizer = cooper.optim.SimultaneousOptimizer(
        cmp=problem,
        primal_optimizers=sgd(model),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=ETA, maximize=True),
    )

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        optimizer.roll(compute_cmp_state_kwargs={"model": model, "X": X, "y": y, "group": group})

    return step


def by_humancompatible(read: BatchStatistics, smoothed: bool) -> Step:
    """Its Lagrangian; `smoothed` with penalty and Moreau envelope, which is its SSL-ALM."""
    from humancompatible.train.dual_optim.alm import ALM
    from humancompatible.train.dual_optim.moreau import MoreauEnvelope

    model = network()
    optimizer = MoreauEnvelope(sgd(model), mu=2.0, beta=0.5) if smoothed else sgd(model)
    dual = ALM(m=2, lr=ETA, penalty=1.0 if smoothed else 0.0, is_ineq=True)

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        losses = bce(model(X), y, reduction="none")
        dual.forward_update(losses[:64].mean(), read.gaps(losses, group)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_fairret(read: BatchStatistics) -> Step:
    """Its regularizer of the positive rate: a penalty, so no multipliers."""
    from fairret.loss import NormLoss
    from fairret.statistic import PositiveRate

    model, regularizer = network(), NormLoss(PositiveRate())
    optimizer = sgd(model)

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        logits = model(X)
        loss = bce(logits[:64], y[:64]) + 0.5 * regularizer(logits[64:, None], read.one_hot(group))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


PEERS: dict[str, Callable[[BatchStatistics], Step]] = {
    COOPER: by_cooper,
    "humancompatible-train, Lagrangian": lambda read: by_humancompatible(read, False),
    "humancompatible-train, SSL-ALM-like": lambda read: by_humancompatible(read, True),
    "fairret, regularizer": by_fairret,
}


def peers() -> dict[str, tuple[Step, Step]]:
    """Those that are installed, with groups in fixed places and shuffled."""
    found = {}
    for name, made in PEERS.items():
        try:
            found[name] = made(SLICES), made(MASKS)
        except ModuleNotFoundError as error:
            skip(name, f"{error}; pip install -r benchmarks/requirements.txt")
    return found


# The race -------------------------------------------------------------------------------------------------------------


def contestants() -> dict[str, Contestant]:
    fixed, shuffled = Batches(), Batches(shuffled=True)
    methods = {
        "descent-ascent": DescentAscent(tau=LR, eta=ETA),
        "SSL-ALM, one mini-batch": SSLALM(tau=LR, eta=ETA, samples=1),
    }
    steps = {
        name: (constrained(method, fixed.objective), constrained(method, shuffled.objective))
        for name, method in methods.items()
    } | peers()
    found = {"plain SGD": fixed.steps(plain())}
    found |= {f"{name} (fixed)": fixed.steps(step) for name, (step, _) in steps.items()}
    found |= {f"{name} (shuffled)": shuffled.steps(step) for name, (_, step) in steps.items()}
    if COOPER in steps:
        found[f"{COOPER} (fixed, masks)"] = fixed.steps(by_cooper(MASKS))
        found[f"{COOPER} (fixed, matrix)"] = fixed.steps(by_cooper(MATRIX))
    return found


def shown(found: Rounds) -> None:
    """Every contestant's time, and descent-ascent beside Cooper in other settings than the judged one."""
    for name, own in found.medians().items():
        times = found.ratio(name, "plain SGD")
        print(f"{name:<46} {own.cpu:7.1f} us CPU {own.wall:7.1f} us wall  plain steps: {times}")
    if f"{COOPER} (fixed)" not in found.times:
        return
    print("descent-ascent against Cooper, not judged:")
    for ours, theirs, words in (
        ("shuffled", "shuffled", "groups shuffled, Cooper's user has masks"),
        ("fixed", "fixed", "groups in fixed places, Cooper's user has slices"),
        ("fixed", "fixed, matrix", "groups in fixed places, Cooper's user has a matrix made once"),
    ):
        print(f"  {words}: {found.ratio(f'descent-ascent ({ours})', f'{COOPER} ({theirs})')}")


def judged(found: Rounds) -> Checks:
    """Groups in fixed places."""
    checks = Checks()
    ours, alm, theirs = "descent-ascent (fixed)", "SSL-ALM, one mini-batch (fixed)", f"{COOPER} (fixed, masks)"
    checks.at_most("descent-ascent, groups in fixed places, plain steps", found.ratio(ours, "plain SGD"), 1.15)
    checks.at_most(
        "SSL-ALM with one mini-batch, groups in fixed places, plain steps", found.ratio(alm, "plain SGD"), 1.4
    )
    if theirs in found.times:
        checks.at_most(
            f"descent-ascent against {COOPER}, groups in fixed places, Cooper's user has masks",
            found.ratio(ours, theirs),
            0.5,
        )
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = alternate(contestants(), options.rounds, warm=2)
    print(machine())
    shown(found)
    return judged(found).status


if __name__ == "__main__":
    raise SystemExit(main())
