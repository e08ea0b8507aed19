"""Draw docs/_static/gap.png: the gap of two groups' losses along training, with and without the constraint.

    OMP_NUM_THREADS=1 python tools/make_front_figure.py

Ten runs each on the synthetic census of Oklahoma, measured on training and on held-out examples.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from fairbound import SGD, BatchSpec, DescentAscent, Problem, Sampler, constraints, initial_points, make_functional, run
from fairbound.algorithms.schedules import Linear
from fairbound.data import load, random_split, scaled

FIGURE = Path(__file__).parent.parent / "docs" / "_static" / "gap.png"
BOUND, STEPS, RUNS = 0.02, 3000, 10
COLORS = {"unconstrained (SGD)": "#b3541e", "fairbound (DescentAscent)": "#1b6ca8"}


def gaps() -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    """By part of the data and method: steps (T,), and mean loss of the one group minus the other's (T, runs)."""
    data = load("synthetic:OK").dataset("RAC1P=1")
    group = data.groups["RAC1P"]
    split = random_split(group, {"train": 0.7, "test": 0.3}, seed=0)
    data = scaled(data, split)

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(data.X.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")

    parity = constraints.pairwise_loss_parity(["white", "other"], bound=BOUND).bind(group)
    problem = Problem(make_functional(net())[0], loss, parity, data)
    sampler = Sampler(split, parity.cells, BatchSpec(objective=64, cell=64))
    decaying = Linear(0.2, STEPS)
    methods = {
        "unconstrained (SGD)": SGD(tau=decaying),
        "fairbound (DescentAscent)": DescentAscent(tau=decaying, eta=Linear(0.4, STEPS)),
    }
    found: dict[str, dict[str, tuple[Tensor, Tensor]]] = {"training data": {}, "held-out data": {}}
    for name, method in methods.items():
        seen = list(
            run(problem, method, sampler.seeded(*range(RUNS)), initial_points(net, range(RUNS)), STEPS, every=50)
        )
        for part, rows in (("training data", split.train), ("held-out data", split.test)):
            gap = torch.stack([problem.evaluate(record.x, rows).c[:, 0] + BOUND for record in seen])
            found[part][name] = torch.tensor([record.step for record in seen]), gap
    return found


def main() -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.1), sharey=True, constrained_layout=True)
    for axis, (part, curves) in zip(axes, gaps().items(), strict=True):
        axis.axhspan(-BOUND, BOUND, color="#888888", alpha=0.2, linewidth=0, label=f"bound: ±{BOUND}")
        for name, (steps, gap) in curves.items():
            low, high = gap.amin(1), gap.amax(1)
            axis.plot(steps, gap.median(1)[0], color=COLORS[name], label=name)
            axis.fill_between(steps, low, high, color=COLORS[name], alpha=0.2, linewidth=0)
        axis.set(title=part, xlabel="step")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("loss of white − loss of other")
    axes[0].legend(fontsize=8, frameon=False)
    figure.savefig(FIGURE, dpi=160)


if __name__ == "__main__":
    main()
