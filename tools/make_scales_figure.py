"""Draw docs/reference/algorithms/adaptive_pi_scales.svg: one loop, its constraint in three units,
two methods.

    OMP_NUM_THREADS=1 python tools/make_scales_figure.py

The constraint is a loss gap minus its bound, times 0.01, 1 and 100: the same problem each time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from fairbound import AdaptivePI, Constrained, DescentAscent, constraints
from fairbound.core import MultiplierMethod

FIGURE = (
    Path(__file__).parent.parent / "docs" / "reference" / "algorithms" / "adaptive_pi_scales.svg"
)
BOUND, STEPS, EVERY = 0.02, 1500, 5
STYLES = {0.01: ("#1b6ca8", "-", 3.0), 1.0: ("#e0a030", "--", 2.0), 100.0: ("#b3541e", ":", 2.0)}

torch.manual_seed(0)
group = (torch.rand(4000) < 0.3).long()
X = torch.randn(4000, 5)
y = (X.sum(1) - 2 * group * X[:, 0] + torch.randn(4000) > 0).float()  # B has another labeling rule
loss = nn.BCEWithLogitsLoss(reduction="none")


def gap(model: nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-example losses, and B's mean loss minus A's."""
    losses = loss(model(X[rows]), y[rows])
    return losses, losses[group[rows] == 1].mean() - losses[group[rows] == 0].mean()


def gaps(method: MultiplierMethod[Any], scale: float) -> list[float]:
    """The gap over all examples along training."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    fair = Constrained(model, constraints.given("gap"), method)
    values = []
    for step in range(STEPS):
        optimizer.zero_grad()
        losses, difference = gap(model, torch.randint(4000, (256,)))
        fair.backward(losses, values={"gap": scale * (difference - BOUND)})
        optimizer.step()
        if step % EVERY == 0:
            with torch.no_grad():
                values.append(float(gap(model, torch.arange(4000))[1]))
    return values


def main() -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "scales", "svg.fonttype": "none", "font.size": 10})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(7.5, 2.8), sharey=True, constrained_layout=True)
    methods: tuple[MultiplierMethod[Any], ...] = AdaptivePI(), DescentAscent()
    for axis, method in zip(axes, methods, strict=True):
        axis.axhline(BOUND, color="#888888", linewidth=1)
        for scale, (color, line, width) in STYLES.items():
            values = gaps(method, scale)
            axis.plot(
                range(0, STEPS, EVERY),
                values,
                line,
                color=color,
                linewidth=width,
                label=f"c times {scale:g}",
            )
            before = {
                end: sum(values[(end - 100) // EVERY : end // EVERY]) * EVERY / 100
                for end in (600, STEPS)
            }
            means = ", ".join(f"{mean:.3f} before step {end}" for end, mean in before.items())
            print(f"{type(method).__name__}, c times {scale:g}: mean gap over 100 steps {means}")
        axis.set(title=type(method).__name__, xlabel="step", ylim=(-0.15, 0.4))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("loss of B - loss of A")
    axes[0].legend(fontsize=8, frameon=False)
    figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
