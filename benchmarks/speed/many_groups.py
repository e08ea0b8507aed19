"""A step with 10 to 1,000,000 groups: `Constrained` beside a plain step and Cooper's
IndexedMultiplier, in one run.

    OMP_NUM_THREADS=1 python benchmarks/speed/many_groups.py [--rounds 30]

A net 64-512-1, SGD, mini-batches of 512 whose groups are drawn evenly, so that at 1,000 groups and
more they show 400 to 512 of them. "Each" bounds every group's loss; "against the mean" its distance
from the mean of the group losses, of which absent groups' running means are a part; Cooper has
indexed multipliers for the first. Ratios of CPU time to a plain step on the same mini-batches are
taken within alternating rounds.

Memory is what a process has at its peak in 300 steps beyond what a plain loop left it with, in a
process for each; and the tables that the state has. The last lines compare the multipliers with the
dense form at 50 groups.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import torch
from measuring import Checks, Contestant, alternate, machine, skip
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils._pytree import tree_leaves

from fairbound import Constrained, DescentAscent, constraints
from fairbound.constraints import _cells as cells

SIZES = (10, 1_000, 100_000, 1_000_000)
INPUTS, WIDTH, BATCH, CHUNK = 64, 512, 512, 40
LR, ETA = 0.05, 1e-3
EACH, MEAN, COOPER = "each", "against the mean", "Cooper, each"
BOUNDS = {EACH: 0.3, MEAN: 0.05}
KINDS = {EACH: constraints.bounded_group_loss, MEAN: constraints.loss_parity}
Step = Callable[[Tensor, Tensor, Tensor], None]  # inputs, labels, groups


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1), nn.Flatten(0)
        )


def mini_batches(groups: int, count: int = 64) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Labels can be learned, so that nothing diverges."""
    generator, made = torch.Generator().manual_seed(0), []
    for _ in range(count):
        X = torch.randn(BATCH, INPUTS, generator=generator)
        made.append(
            (X, (X[:, :8].sum(1) > 0).float(), torch.randint(groups, (BATCH,), generator=generator))
        )
    return made


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR)


def plain(groups: int) -> Step:
    model = network()
    optimizer = sgd(model)

    def step(X: Tensor, y: Tensor, _: Tensor) -> None:
        optimizer.zero_grad()
        bce(model(X), y).backward()
        optimizer.step()

    return step


def constrained(kind: str, groups: int, eta: float = ETA) -> tuple[Step, Constrained]:
    model = network()
    optimizer = sgd(model)
    fair = Constrained(model, KINDS[kind](groups, bound=BOUNDS[kind]), DescentAscent(eta=eta))

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        optimizer.zero_grad()
        fair.backward(bce(model(X), y, reduction="none"), group)
        optimizer.step()

    return step, fair


def by_cooper(groups: int) -> Step:
    """As its documentation does: the violations of the groups that the mini-batch shows, and their
    numbers."""
    import cooper

    class Bounded(cooper.ConstrainedMinimizationProblem):
        def __init__(self) -> None:
            super().__init__()
            self.loss = cooper.Constraint(
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=cooper.formulations.Lagrangian,
                multiplier=cooper.multipliers.IndexedMultiplier(num_constraints=groups),
            )

        def compute_cmp_state(
            self, model: nn.Module, X: Tensor, y: Tensor, group: Tensor
        ) -> cooper.CMPState:
            losses = bce(model(X), y, reduction="none")
            shown, place, counts = group.unique(return_inverse=True, return_counts=True)
            means = losses.new_zeros(len(shown)).index_add(0, place, losses) / counts
            state = cooper.ConstraintState(
                violation=means - BOUNDS[EACH], constraint_features=shown
            )
            return cooper.CMPState(losses.mean(), {self.loss: state})

    model, problem = network(), Bounded()
    optimizer = cooper.optim.SimultaneousOptimizer(
        cmp=problem,
        primal_optimizers=sgd(model),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=ETA, maximize=True),
    )

    def step(X: Tensor, y: Tensor, group: Tensor) -> None:
        optimizer.roll(compute_cmp_state_kwargs={"model": model, "X": X, "y": y, "group": group})

    return step


STEPS: dict[str, Callable[[int], Step]] = {
    EACH: lambda groups: constrained(EACH, groups)[0],
    MEAN: lambda groups: constrained(MEAN, groups)[0],
    COOPER: by_cooper,
}


def repeated(step: Step, groups: int) -> Contestant:
    batches = cycle(mini_batches(groups))

    def work() -> int:
        for _ in range(CHUNK):
            step(*next(batches))
        return CHUNK

    return work


# Memory -------------------------------------------------------------------------------------------


def resident(which: str) -> float:
    """Megabytes of this process: `VmRSS` now, `VmHWM` at its peak (Linux)."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(which)
    )
    return int(line.split()[1]) / 1024


def grown(kind: str, groups: int) -> float:
    """What this process has at its peak beyond what a plain loop left it with, megabytes."""
    batches, before = mini_batches(groups), 0.0
    for make in (plain, STEPS[kind]):
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        step = make(groups)
        for _, batch in zip(range(300), cycle(batches), strict=False):
            step(*batch)
    return resident("VmHWM") - before


def measured_apart(kind: str, groups: int) -> float:
    """`grown` in a process of its own."""
    command = [sys.executable, __file__, "--grown", kind, str(groups)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def tables(fair: Constrained) -> float:
    """Megabytes of what the method and the loop keep of constraints."""
    steps = fair._steps
    running = [
        vars(means).values()
        for means in getattr(steps.evaluation, "running", None) or []
        if means is not None
    ]
    tables = [
        *tree_leaves(steps.state),
        steps.last,
        steps.progress.at,
        *(table for part in running for table in part),
    ]
    return sum(table.nbytes for table in tables if isinstance(table, Tensor)) / 1e6


# Multipliers --------------------------------------------------------------------------------------


def farthest(kind: str, groups: int = 50, steps: int = 100) -> tuple[float, float]:
    """The largest difference of a multiplier between the gathered and the dense form, and the
    largest multiplier."""
    found, usual = [], cells.MANY
    for most in (usual, groups // 2):
        cells.MANY = most
        step, fair = constrained(kind, groups, eta=0.05)
        assert fair._steps.gathered == (groups > most)
        for _, (X, y, group) in zip(range(steps), cycle(mini_batches(groups)), strict=False):
            step(X[:64], y[:64], group[:64])
        found.append(torch.tensor(list(fair.multipliers.values())))
    cells.MANY = usual
    return float((found[0] - found[1]).abs().max()), float(found[0].max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--grown", nargs=2, metavar=("KIND", "GROUPS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.grown:
        print(grown(options.grown[0], int(options.grown[1])))
        return 0
    print(machine())
    checks, kinds = Checks(), dict(STEPS)
    try:
        import cooper  # noqa: F401
    except ImportError as error:
        skip(COOPER, error)
        del kinds[COOPER]
    contestants = {"plain": repeated(plain(10), 10)}
    for groups in SIZES:
        for kind, make in kinds.items():
            began = time.process_time()
            contestants[f"{kind}, {groups:,}"] = repeated(make(groups), groups)
            print(
                f"{kind}, {groups:,} groups: built in {time.process_time() - began:.2f} s",
                flush=True,
            )
    found = alternate(contestants, options.rounds, warm=2)
    for name, spent in found.medians().items():
        print(f"{name}: {spent.cpu:.0f} us, {found.ratio(name, 'plain')} plain steps", flush=True)
    for kind in (EACH, MEAN):
        checks.at_most(
            f"{kind}, 100,000 groups, in plain steps", found.ratio(f"{kind}, 100,000", "plain"), 1.6
        )
        checks.at_most(
            f"{kind}, 1,000,000 against 1,000",
            found.ratio(f"{kind}, 1,000,000", f"{kind}, 1,000"),
            1.15,
        )
    if COOPER in kinds:
        for groups in SIZES[1:]:
            ratio = found.ratio(f"{EACH}, {groups:,}", f"{COOPER}, {groups:,}")
            print(f"each, {groups:,} groups, against Cooper: {ratio}", flush=True)
    for groups in SIZES[1:]:
        for kind in kinds:
            size = ""
            if kind in KINDS:
                step, fair = constrained(kind, groups)
                step(*mini_batches(groups, 1)[0])
                size = f", tables {tables(fair):.1f} MB"
            print(
                f"{kind}, {groups:,} groups: memory {measured_apart(kind, groups):+.1f} MB{size}",
                flush=True,
            )
    for kind in KINDS:
        difference, largest = farthest(kind)
        print(f"{kind}, 50 groups: the largest multiplier is {largest:.4f}")
        checks.at_most(f"{kind}, 50 groups: multipliers against the dense form", difference, 1e-6)
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
