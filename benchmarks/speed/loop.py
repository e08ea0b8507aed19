"""A step in a user's loop: `Constrained` beside a loop written by hand and other libraries, in one
run.

    OMP_NUM_THREADS=1 python benchmarks/speed/loop.py [--rounds 40]

Mini-batches of 256 examples in two groups, in random order; a net 9-h-h-1 of 2,753 (9-64-32-1),
99,821 and 5 million parameters; pairwise loss parity. A plain step is SGD on the mean loss of the
same mini-batch. Ratios are taken within alternating rounds. Descent-ascent takes at most 1.05 times
as long as the same method written by hand from 99,821 parameters on, and is no slower than Cooper's
at any size, beyond the quartiles. Each other library is used as its documentation does, with masks
for the groups; one that is not installed is named and skipped. AdaptivePI takes at most 1.15 times
as long as descent-ascent, its probes included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from measuring import Checks, Contestant, Rounds, alternate, machine, skip
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from fairbound import SSLALM, AdaptivePI, Algorithm, Constrained, DescentAscent, constraints
from fairbound._utils.measuring import BEGINNING, EVERY

LR, ETA, BOUND, BATCH = 0.05, 0.5, 0.02, 256
PLAIN, HAND, DA, ALM = (
    "plain SGD",
    "descent-ascent, by hand",
    "descent-ascent",
    "SSL-ALM, one mini-batch",
)
COOPER, PI = "Cooper, descent-ascent", "AdaptivePI"
MOST = 1.05  # of descent-ascent to the one written by hand
MOST_ADAPTIVE = 1.15  # of AdaptivePI to descent-ascent
Step = Callable[[Tensor, Tensor, Tensor], None]  # inputs, labels, groups


class Size(NamedTuple):
    """A network, and what is wanted of a step of it."""

    widths: tuple[int, ...]
    steps: int  # of a contestant in one round
    checked: bool = True  # whether descent-ascent is compared with MOST

    def network(self) -> nn.Sequential:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = [
                layer for a, b in pairwise(self.widths) for layer in (nn.Linear(a, b), nn.ReLU())
            ]
            return nn.Sequential(*layers[:-1], nn.Flatten(0))

    @property
    def parameters(self) -> int:
        return sum((a + 1) * b for a, b in pairwise(self.widths))


SIZES = (
    Size((9, 64, 32, 1), 40, checked=False),
    Size((9, 310, 310, 1), 20),
    Size((9, 2_230, 2_230, 1), 1),
)


def mini_batches(count: int = 16) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Labels of the second group are harder to tell, so that the constraint is active."""
    generator, made = torch.Generator().manual_seed(0), []
    for _ in range(count):
        X, group = (
            torch.randn(BATCH, 9, generator=generator),
            torch.randint(2, (BATCH,), generator=generator),
        )
        y = (torch.rand(BATCH, generator=generator) < 0.1 + 0.4 * group).float()
        made.append((X, y, group))
    return made


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR)


def plain(model: nn.Module) -> Step:
    optimizer = sgd(model)

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        optimizer.zero_grad()
        bce(model(X), y).backward()
        optimizer.step()

    return step


def by_hand(model: nn.Module) -> Step:
    """Descent-ascent without a library: masks, a Lagrangian, a projected step of the
    multipliers."""
    optimizer, y = sgd(model), torch.zeros(2)

    def step(X: Tensor, labels: Tensor, group: Tensor) -> None:
        nonlocal y
        losses = bce(model(X), labels, reduction="none")
        c = gaps(losses, group)
        optimizer.zero_grad()
        (losses.mean() + y @ c).backward()
        y = (y + ETA * c.detach()).clamp(min=0)
        optimizer.step()

    return step


def constrained(method: Algorithm[Any]) -> Callable[[nn.Module], Step]:
    def made(model: nn.Module) -> Step:
        optimizer = sgd(model)
        fair = Constrained(model, constraints.pairwise_loss_parity(["A", "B"], bound=BOUND), method)

        def step(X: Tensor, y: Tensor, group: Tensor) -> None:
            optimizer.zero_grad()
            fair.backward(bce(model(X), y, reduction="none"), group)
            optimizer.step()

        return step

    return made


# Other libraries ----------------------------------------------------------------------------------


def gaps(losses: Tensor, group: Tensor) -> Tensor:
    """Both sides of the gap of two groups, less the bound, as a user writes it."""
    gap = losses[group == 0].mean() - losses[group == 1].mean()
    return torch.stack([gap, -gap]) - BOUND


def by_cooper(model: nn.Module) -> Step:
    import cooper

    class Parity(cooper.ConstrainedMinimizationProblem):
        def __init__(self) -> None:
            super().__init__()
            self.gap = cooper.Constraint(
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=cooper.formulations.Lagrangian,
                multiplier=cooper.multipliers.DenseMultiplier(num_constraints=2),
            )

        def compute_cmp_state(
            self, model: nn.Module, X: Tensor, y: Tensor, group: Tensor
        ) -> cooper.CMPState:
            losses = bce(model(X), y, reduction="none")
            return cooper.CMPState(
                losses.mean(), {self.gap: cooper.ConstraintState(violation=gaps(losses, group))}
            )

    problem = Parity()
    optimizer = cooper.optim.SimultaneousOptimizer(
        cmp=problem,
        primal_optimizers=sgd(model),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=ETA, maximize=True),
    )

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        optimizer.roll(compute_cmp_state_kwargs={"model": model, "X": X, "y": y, "group": group})

    return step


def by_humancompatible(smoothed: bool) -> Callable[[nn.Module], Step]:
    """Its Lagrangian; `smoothed` with penalty and Moreau envelope, which is its SSL-ALM."""

    def made(model: nn.Module) -> Step:
        from humancompatible.train.dual_optim.alm import ALM
        from humancompatible.train.dual_optim.moreau import MoreauEnvelope

        optimizer = MoreauEnvelope(sgd(model), mu=2.0, beta=0.5) if smoothed else sgd(model)
        dual = ALM(m=2, lr=ETA, penalty=1.0 if smoothed else 0.0, is_ineq=True)

        def step(X: Tensor, y: Tensor, group: Tensor) -> None:
            losses = bce(model(X), y, reduction="none")
            dual.forward_update(losses.mean(), gaps(losses, group)).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return made


def by_fairret(model: nn.Module) -> Step:
    """Its regularizer of the positive rate: a penalty, so no multipliers."""
    from fairret.loss import NormLoss
    from fairret.statistic import PositiveRate

    optimizer, regularizer = sgd(model), NormLoss(PositiveRate())

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        logits = model(X)
        loss = bce(logits, y) + 0.5 * regularizer(
            logits[:, None], torch.stack([group == 0, group == 1], 1).float()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


OURS: dict[str, Callable[[nn.Module], Step]] = {
    PLAIN: plain,
    HAND: by_hand,
    DA: constrained(DescentAscent(eta=ETA)),
    ALM: constrained(SSLALM(tau=LR, eta=ETA, samples=1)),
}
PEERS: dict[str, Callable[[nn.Module], Step]] = {
    COOPER: by_cooper,
    "humancompatible-train, Lagrangian": by_humancompatible(smoothed=False),
    "humancompatible-train, SSL-ALM-like": by_humancompatible(smoothed=True),
    "fairret, regularizer": by_fairret,
}


def contestants(
    size: Size, chosen: dict[str, Callable[[nn.Module], Step]]
) -> dict[str, Contestant]:
    """Those of them that are installed, on the same mini-batches."""
    batches, found = mini_batches(), {}

    def repeated(step: Step) -> Contestant:
        turn = 0

        def work() -> int:
            nonlocal turn
            for _ in range(size.steps):
                turn += 1
                step(*batches[turn % len(batches)])
            return size.steps

        return work

    for name, made in chosen.items():
        try:
            found[name] = repeated(made(size.network()))
        except ModuleNotFoundError as error:
            skip(
                f"{name}, {size.parameters:,} parameters",
                f"{error}; pip install -r benchmarks/requirements.txt",
            )
    return found


def judge(size: Size, found: Rounds, checks: Checks) -> None:
    where = f"{size.parameters:,} parameters"
    print(f"{where}:")
    for name, time in found.medians().items():
        plain_steps, by_hand_steps = found.ratio(name, PLAIN), found.ratio(name, HAND)
        print(
            f"  {name:<36} {time.cpu:9.1f} us CPU, plain steps: {plain_steps}; by hand:"
            f" {by_hand_steps.median:.3g}"
        )
    if size.checked:
        checks.at_most(f"{DA}, {where}, times {HAND}", found.ratio(DA, HAND), MOST)
    if COOPER in found.times:
        checks.at_most(
            f"{DA} against Cooper's, {where}, lower quartile", found.ratio(DA, COOPER).low, 1.0
        )


def judge_adaptive(size: Size, rounds: int, checks: Checks) -> None:
    """Rounds of as many steps as lie between two probes, after the beginning, where probes are
    frequent."""
    size = size._replace(steps=EVERY)
    both = {DA: OURS[DA], PI: constrained(AdaptivePI())}
    found = alternate(contestants(size, both), rounds, warm=BEGINNING // EVERY)
    checks.at_most(
        f"{PI}, {size.parameters:,} parameters, times {DA}", found.ratio(PI, DA), MOST_ADAPTIVE
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    checks = Checks()
    for size in SIZES:
        judge(size, alternate(contestants(size, OURS | PEERS), options.rounds, warm=2), checks)
    for size in SIZES[1:]:
        judge_adaptive(size, max(1, options.rounds // 5), checks)
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
