"""What a finished experiment says in one table: losses and violations of every row, from the store alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairbound.bench.execute import Stack
from fairbound.bench.setting import Setting
from fairbound.bench.store import Store


class Spread(NamedTuple):
    """Over the runs of a row."""

    mean: float
    std: float  # 0 for a single run


class Line(NamedTuple):
    """One row of the experiment on one part of the split."""

    row: str
    steps: int
    runs: int
    loss: Spread
    violation: Spread  # the largest excess of a constraint over the bound, at least 0


def summary(setting: Setting, store: Store, planned: Sequence[Stack], part: str) -> list[Line]:
    """Every row's loss and violation on a part: the mean over the last states of a run, then over runs and splits."""
    constraint = setting.constraint(setting.experiment.notion, setting.experiment.bound)
    contrast, bound = constraint.contrast.numpy(), constraint.bound.numpy()
    found: dict[str, list[tuple[float, float]]] = {}
    steps: dict[str, int] = {}
    for stack in planned:
        for plan, key in zip(stack.plans, stack.keys, strict=True):
            cell = store.get(key)
            if cell is None:
                continue
            losses = np.asarray(cell.tables["records"][part], dtype=np.float64)[-setting.experiment.last_states :]
            gaps = losses[:, 1:] @ contrast.T
            gaps = np.abs(gaps) if constraint.absolute else gaps
            violation = np.maximum(gaps - bound, 0.0).max(1).mean()
            found.setdefault(plan.row.name, []).append((losses[:, 0].mean(), violation))
            steps[plan.row.name] = plan.steps
    return [_line(row.name, steps[row.name], found[row.name]) for row in setting.experiment.rows if row.name in found]


def _line(name: str, steps: int, runs: Sequence[tuple[float, float]]) -> Line:
    table = np.array(runs)
    spread = [Spread(float(c.mean()), float(c.std(ddof=1)) if len(c) > 1 else 0.0) for c in table.T]
    return Line(name, steps, len(runs), *spread)
