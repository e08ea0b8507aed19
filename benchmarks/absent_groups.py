"""Twenty Zipf-distributed groups in plain shuffled batches: most of them lack a group, and a bound
is kept.

    OMP_NUM_THREADS=1 python benchmarks/absent_groups.py [--steps 1200] [--choose]

Group k has a share proportional to k^-1.3 of 25,600 examples, and batches of 128 are drawn by
shuffling, so that 19 of 20 lack at least one group. The label is the sign of a sum, flipped with a
probability that rises from 0 for the most common group to .35 for the rarest, and the group is
among the inputs. The constraint is
|loss of a group - mean of the group losses| <= .05.

The contestants are one loop with one model, optimizer and order of batches:
- unconstrained;
- `Constrained` with descent-ascent: groups that are present are compared with the mean of all, to
  which those that are absent add their running means;
- a hand-written rule: those that are present, with the mean of those that are present;
- a hand-written rule that acts only in batches that show every group, as `Constrained` did before.

Step sizes are those with the smallest gap on training data, by `--choose`, on other seeds (of data
and models) than those reported; lr is the same for all. With eta .5 the first two rules diverge on
some seeds, and the last is at its best. Ends with status 3 where the held-out gap is missed. The
last part shows what is said of a group that is hardly ever seen.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import one_hot

from fairbound import Constrained, DescentAscent, constraints

GROUPS, INPUTS, BATCH, EXAMPLES, HELD_OUT, EXPONENT, BOUND, TARGET = (
    20,
    4,
    128,
    25_600,
    50_000,
    1.3,
    0.05,
    0.11,
)
NONE, OURS, PRESENT, WHOLE = (
    "unconstrained",
    "Constrained",
    "rule over present groups",
    "rule where all are present",
)
REPORTED, OTHER = range(5), range(100, 103)  # seeds
LR = 0.1
# the best for each, the last at .5
DUAL_STEPS = ((NONE, 0.0), (OURS, 0.2), (PRESENT, 0.2), (WHOLE, 0.2), (WHOLE, 0.5))
MISSED = 3

Backward = Callable[[Tensor, Tensor], None]  # losses, groups


class Data(NamedTuple):
    X: Tensor
    y: Tensor
    groups: Tensor


def shares(rarest: float | None = None) -> Tensor:
    """(K,) of the groups; `rarest` replaces that of the last."""
    p = torch.arange(1, GROUPS + 1.0) ** -EXPONENT
    if rarest is not None:
        p[-1] = rarest * p[:-1].sum() / (1 - rarest)
    return p / p.sum()


def drawn(seed: int, count: int, p: Tensor) -> Data:
    generator = torch.Generator().manual_seed(seed)
    groups = torch.multinomial(p, count, True, generator=generator)
    X = torch.randn(count, INPUTS, generator=generator)
    flipped = torch.rand(count, generator=generator) < torch.linspace(0.0, 0.35, GROUPS)[groups]
    y = (X.sum(1) > 0) ^ flipped
    return Data(torch.cat([X, one_hot(groups, GROUPS).float()], 1), y.float(), groups)


def hand_written(eta: float, *, whole: bool) -> Backward:
    """Descent-ascent over the groups that a batch shows; `whole`: in batches that show all of them
    alone."""
    y = torch.zeros(2, GROUPS)  # multipliers of loss - mean <= bound and mean - loss <= bound

    def backward(losses: Tensor, groups: Tensor) -> None:
        nonlocal y
        counts = torch.bincount(groups, minlength=GROUPS)
        present = counts > 0
        value = losses.mean()
        if not whole or bool(present.all()):
            sums = torch.zeros(GROUPS).index_add(0, groups, losses)
            means = sums[present] / counts[present]
            gaps = means - means.mean()
            value = value + ((y[0] - y[1])[present] * gaps).sum()
            step = eta * torch.stack([gaps - BOUND, -gaps - BOUND]).detach()
            y[:, present] = (y[:, present] + step).clamp(min=0)
        value.backward()

    return backward


def of_contestant(name: str, model: nn.Module, eta: float) -> tuple[Backward, Constrained | None]:
    if name == NONE:
        return lambda losses, _: losses.mean().backward(), None
    if name == OURS:
        fair = Constrained(
            model, constraints.loss_parity(GROUPS, bound=BOUND), DescentAscent(eta=eta)
        )
        return lambda losses, groups: fair.backward(losses, groups) and None, fair
    return hand_written(eta, whole=name == WHOLE), None


class Outcome(NamedTuple):
    train: float  # gap, max |loss of a group - mean of the group losses|
    held_out: float
    loss: float  # mean loss, held out
    lacking: float  # share of batches without one of the groups
    fair: Constrained | None


def trained(
    name: str, seed: int, steps: int, lr: float, eta: float, rarest: float | None = None
) -> Outcome:
    p = shares(rarest)
    data, held_out = drawn(seed, EXAMPLES, p), drawn(10_000 + seed, HELD_OUT, p)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(INPUTS + GROUPS, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    backward, fair = of_contestant(name, model, eta)
    step, lacking = 0, 0
    while step < steps:
        for chosen in torch.randperm(EXAMPLES).split(BATCH)[: steps - step]:
            X, y, groups = (part[chosen] for part in data)
            optimizer.zero_grad()
            backward(bce(model(X), y, reduction="none"), groups)
            optimizer.step()
            decay.step()
            step, lacking = step + 1, lacking + (len(groups.unique()) < GROUPS)
    return Outcome(gap(model, data)[0], *gap(model, held_out), lacking / steps, fair)


def gap(model: nn.Module, data: Data) -> tuple[float, float]:
    with torch.no_grad():
        losses = bce(model(data.X), data.y, reduction="none")
    counts = torch.bincount(data.groups, minlength=GROUPS)
    means = (torch.bincount(data.groups, losses, minlength=GROUPS) / counts)[counts > 0]
    return float((means - means.mean()).abs().max()), float(losses.mean())


def choose(steps: int) -> None:
    """Gaps on training data, over step sizes; on seeds that are not reported."""
    for name in (NONE, OURS, PRESENT, WHOLE):
        for lr in (0.1, 0.2, 0.5):
            for eta in (0.0,) if name == NONE else (0.02, 0.05, 0.1, 0.2, 0.5):
                found = [trained(name, seed, steps, lr, eta) for seed in OTHER]
                gaps, loss = (
                    [one.train for one in found],
                    statistics.mean(one.loss for one in found),
                )
                print(
                    f"{name}, lr {lr:g}, eta {eta:g}: gap {statistics.mean(gaps):.3f}, loss"
                    f" {loss:.3f}",
                    flush=True,
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument(
        "--choose", action="store_true", help="print gaps over step sizes, on other seeds"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.choose:
        choose(options.steps)
        return 0
    print(
        "gap = max |loss of a group - mean of the group losses|; mean over 5 seeds, and the largest"
    )
    worst = 0.0
    for name, eta in DUAL_STEPS:
        found = [trained(name, seed, options.steps, LR, eta) for seed in REPORTED]
        train, held = [one.train for one in found], [one.held_out for one in found]
        loss = statistics.mean(one.loss for one in found)
        print(
            f"{f'{name}, eta {eta:g}':36} training {statistics.mean(train):.3f} (largest"
            f" {max(train):.3f}), held out {statistics.mean(held):.3f} (largest {max(held):.3f}),"
            f" mean loss {loss:.3f}",
            flush=True,
        )
        if name == OURS:
            worst = statistics.mean(held)
            lacking = statistics.mean(one.lacking for one in found)
    print(f"{lacking:.1%} of the batches lack a group")
    print(
        f"{'met   ' if worst <= TARGET else 'MISSED'} held-out gap with Constrained: {worst:.3f}"
        f" (wanted <= {TARGET})"
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rare = trained(OURS, 0, options.steps, LR, dict(DUAL_STEPS)[OURS], rarest=1e-4)
    print("\nthe rarest group at a share of 1e-4:")
    for one in said:
        print(f"  {one.category.__name__}: {one.message}")
    assert rare.fair is not None
    ages = {name: age for name, age in rare.fair.ages.items() if name.endswith(" - mean")}
    print(f"  steps since a constraint was observed: {ages}")
    return 0 if worst <= TARGET and said else MISSED


if __name__ == "__main__":
    raise SystemExit(main())
