"""The picture of a loop: loss, constraints with their bound, and forces over the steps, from
mini-batches.

At most 200 steps are kept, at equal distances. Of more than 20 constraints the largest is drawn. A
method that measures no forces has its multipliers instead.
"""

from __future__ import annotations

from typing import Any

from fairbound._utils.optional import need
from fairbound.integrations.torch._progress import MonitorHistory

_PANELS = {  # what a panel shows: names of records, or how they begin
    "loss": ("objective",),
    "constraint, minus its bound": ("constraint/", "violation"),
    "force, relative to the loss": ("force/", "force"),
    "multiplier": ("multiplier/", "multiplier_sum"),
}
MOST_LABELS = 8


def drawn(history: MonitorHistory) -> Any:
    """Draw one panel below the other; `plt.show()` shows the figure, `figure.savefig(...)` writes
    it."""
    plt = need("matplotlib.pyplot", "report", "fair.plot()")
    if not history.records:
        raise ValueError(
            "there is nothing to plot before the first step; call fair.plot() while or after"
            " training"
        )
    panels: dict[str, list[str]] = {}
    for title, kinds in _PANELS.items():
        by_kind = [
            [name for name in history.records[-1] if name.startswith(kind)] for kind in kinds
        ]
        panels[title] = next(filter(None, by_kind), [])
    if panels["force, relative to the loss"]:
        del panels["multiplier"]
    panels = {title: names for title, names in panels.items() if names}
    figure, grid = plt.subplots(
        len(panels),
        figsize=(6, 1 + 1.7 * len(panels)),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, (title, names) in zip(grid[:, 0], panels.items(), strict=True):
        for name in names:
            values = [record.get(name, float("nan")) for record in history.records]
            axis.plot(history.steps, values, label=name.partition("/")[2] or f"largest {name}")
        if title.startswith("constraint"):
            axis.axhline(0.0, color="gray", linestyle="--", label="bound")
        axis.set_ylabel(title.replace(", ", ",\n"))
        if title != "loss" and len(names) <= MOST_LABELS:
            axis.legend(fontsize="small")
    grid[-1, 0].set_xlabel("step")
    return figure
