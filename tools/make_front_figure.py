"""Draw docs/_static/gap.png: the gap of two groups' rates along training, with and without the
constraint.

    OMP_NUM_THREADS=1 python tools/make_front_figure.py

Ten runs each on the synthetic census of Virginia, measured on training and on held-out examples.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from fairbound import (
    SGD,
    AdaptivePI,
    BatchSpec,
    Problem,
    Sampler,
    constraints,
    initial_points,
    make_functional,
    run,
)
from fairbound.algorithms.schedules import Linear
from fairbound.data import load, random_split, scaled

FIGURE = Path(__file__).parent.parent / "docs" / "_static" / "gap.png"
BOUND, STEPS, RUNS, EVERY = 0.05, 1500, 10, 50
STEP = Linear(0.2, STEPS)  # decays to 5 %
METHODS = {
    "unconstrained: SGD": (SGD(tau=STEP), "#b3541e"),
    "constrained: AdaptivePI": (AdaptivePI(tau=STEP), "#1b6ca8"),
}

data = load("synthetic:VA").dataset("MAR=1")  # two groups, and MAR is no input of the model
group = data.groups["MAR"]
split = random_split(group, {"train": 0.7, "test": 0.3}, seed=0)
data = scaled(data, split)
PARTS = {"training data": split.train, "held-out data": split.test}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(data.X.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")


def judged(x: Tensor, rows: Tensor) -> tuple[float, float]:
    """Difference of the groups' rates of positive predictions, and accuracy."""
    positive = forward(x, data.X[rows]).flatten() > 0
    first, second = (positive[group[rows] == g].float().mean() for g in (0, 1))
    return float(first - second), float((positive == data.y[rows].bool()).float().mean())


def main() -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 2.9), sharey=True, constrained_layout=True)
    for axis in axes:
        axis.axhspan(
            -BOUND, BOUND, color="#888888", alpha=0.25, linewidth=0, label=f"bound: {BOUND}"
        )
    for name, (method, color) in METHODS.items():
        starts = initial_points(net, range(RUNS))
        records = list(
            run(problem, method, sampler.seeded(*range(RUNS)), starts, STEPS, every=EVERY)
        )
        for axis, (part, rows) in zip(axes, PARTS.items(), strict=True):
            found = torch.tensor([[judged(x, rows) for x in record.x] for record in records])
            gaps, accuracy = found.unbind(-1)
            steps = [record.step for record in records]
            axis.plot(steps, gaps.median(1)[0], color=color, label=name)
            axis.fill_between(
                steps, gaps.amin(1), gaps.amax(1), color=color, alpha=0.2, linewidth=0
            )
            axis.set(title=part, xlabel="step", ylim=(-0.08, 0.28))
            print(
                f"{name}, {part}: gap {gaps[-1].median():.3f}, accuracy {accuracy[-1].median():.3f}"
            )
    axes[0].set_ylabel("gap of the groups' rates")
    axes[1].legend(fontsize=8, frameon=False, loc="center right", bbox_to_anchor=(1, 0.65))
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(FIGURE, dpi=150)


forward, _ = make_functional(net())
# The exact rates steer the multipliers, their differentiable surrogate the weights.
parity = constraints.demographic_parity(list(data.levels["MAR"]), bound=BOUND, proxy=True).bind(
    group
)
problem = Problem(forward, loss, parity, data)
sampler = Sampler(split, parity.cells, BatchSpec(objective=256, cell=512))

if __name__ == "__main__":
    main()
