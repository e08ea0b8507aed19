"""Leverage: which held-out gaps re-weighting the groups can reach at all.

A multiplier on a loss gap is a weight of a group: F + mu'M l = sum_g share_g w_g l_g with w_g = 1 + (M'mu)_g / share_g.
Where the label depends on the group through x only, no weights change the best model, and only memorizing moves the gap
of training data. So before anything is constrained, one model is trained without each group in turn (w_g = 0; for two
groups these are the ends of all non-negative weights), and the interval of their out-of-fold gaps is what re-weighting
can reach. With more than two groups it is part of that: weights may be combined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fairbound._utils.optional import need
from fairbound.constraints.constraint import Constraint
from fairbound.integrations.sklearn.corrections import Evaluated
from fairbound.integrations.sklearn.inputs import is_difference

MAX_NAME = 40  # characters of a constraint's name in the table, which is 80 columns wide


class Reach(NamedTuple):
    """One constraint: its value without weights, and the interval that weights reach; all of held-out data."""

    name: str
    bound: float
    unweighted: float
    low: float
    high: float
    difference: bool  # of groups; else a level of one

    @property
    def within(self) -> bool:
        """Whether re-weighting can meet the bound."""
        return self.low <= self.bound


class Leverage(NamedTuple):
    """The reach of every constraint; `print` shows a table and a sentence."""

    reaches: tuple[Reach, ...]

    @property
    def sentence(self) -> str:
        violated = [reach for reach in self.reaches if reach.unweighted > reach.bound]
        if not violated:
            return "The unconstrained model is within every bound on out-of-fold data."
        worst = max(violated, key=lambda reach: reach.low - reach.bound)
        if worst.within:
            return "Weights of the groups can reach every bound on held-out data."
        remedies = "other inputs, the group among them, a better model, or a looser bound."
        if worst.difference:
            remedies = (
                "another notion (bounded_group_loss never pays for harm), the group as an input, or a correction of "
                "the scores, which lowers confidence or moves decisions."
            )
        return (
            f"Leaving out a group brings {worst.name!r} to between {worst.low:.3f} and {worst.high:.3f} on held-out "
            f"data, and its bound is {worst.bound:g}: no weights of the groups will keep it. What can: {remedies}"
        )

    def __str__(self) -> str:
        width = min(MAX_NAME, max(10, *(len(reach.name) for reach in self.reaches)))
        lines = [f"{'constraint':<{width}} {'bound':>7} {'unweighted':>11} {'reach of weights':>19}"]
        for reach in self.reaches:
            interval = f"[{reach.low:.3f}, {reach.high:.3f}]"
            name = f"{_shortened(reach.name, width):<{width}}"
            lines.append(f"{name} {reach.bound:>7.3f} {reach.unweighted:>11.3f} {interval:>19}")
        return "\n".join(lines)

    def plot(self, ax: Any = None) -> Any:
        """Intervals and bounds, on matplotlib's axes."""
        if ax is None:
            size = (7, 0.5 * len(self.reaches) + 1.5)
            ax = need("matplotlib.pyplot", "report", "A plot").subplots(figsize=size, layout="constrained")[1]
        for y, reach in enumerate(self.reaches):
            ax.plot([reach.low, reach.high], [y, y], color="C0", linewidth=6, alpha=0.5, solid_capstyle="butt")
            ax.plot(reach.unweighted, y, "o", color="C0")
            ax.plot([reach.bound, reach.bound], [y - 0.3, y + 0.3], color="C3")
        ax.set_yticks(range(len(self.reaches)), [reach.name for reach in self.reaches])
        ax.invert_yaxis()
        ax.set_xlabel("held-out value: without weights (dot), reach of weights (bar), bound (red)")
        return ax


def _shortened(name: str, width: int) -> str:
    """Cut in the middle: names differ at their ends."""
    return name if len(name) <= width else f"{name[: (width - 1) // 2]}~{name[len(name) - width // 2 :]}"


def measure_leverage(
    constraints: Sequence[Constraint],
    unweighted: Evaluated,
    without: Callable[[str, int], Evaluated],
) -> Leverage:
    """`without(column, group)` evaluates a model that was trained without that group, out of fold."""
    columns = {constraint.by or "": constraint.cells.groups or 0 for constraint in constraints}
    values = {by: [without(by, group).c for group in range(count)] for by, count in columns.items()}
    reaches, start = [], 0
    for constraint in constraints:
        rows = slice(start, start + constraint.m)
        start += constraint.m
        c = torch.stack([unweighted.c[rows], *(c[rows] for c in values[constraint.by or ""])])
        gaps, difference = c + constraint.bound, is_difference(constraint)
        for j, name in enumerate(constraint.names):
            low, high = float(gaps[:, j].amin()), float(gaps[:, j].amax())
            reaches.append(Reach(name, float(constraint.bound[j]), float(gaps[0, j]), low, high, bool(difference[j])))
    return Leverage(tuple(reaches))
