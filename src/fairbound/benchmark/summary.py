"""What the stored runs of an experiment say, run by run and in one line for every row; from the store alone.

A run is measured at its last states (`Experiment.last_states` records), and its value is their mean. Over runs there
are a mean and a standard deviation (n - 1), over splits also Student's interval of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbound.benchmark.executor import RunBatch, RunPlan
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.result_file import StoredResult
from fairbound.benchmark.store import Store

Array = NDArray[np.float64]


class Spread(NamedTuple):
    """Over the runs of a row."""

    mean: float
    std: float  # 0 for a single run

    @staticmethod
    def of(values: Sequence[float] | Array) -> Spread:
        """Of at least one value; not finite where one is not, as after a run that diverged.

        >>> Spread.of([1.0, 3.0])
        Spread(mean=2.0, std=1.4142135623730951)
        """
        column = np.asarray(values, dtype=np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf
            return Spread(float(column.mean()), float(column.std(ddof=1)) if len(column) > 1 else 0.0)


class Interval(NamedTuple):
    """Of a mean."""

    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float] | Array, level: float = 0.95) -> Interval | None:
        """Student's, for independent values; None for fewer than two.

        >>> [round(end, 4) for end in Interval.of([1.0, 2.0, 3.0])]
        [-0.4841, 4.4841]
        """
        if len(values) < 2:
            return None
        mean, std = Spread.of(values)
        half = student_quantile((1 + level) / 2, len(values) - 1) * std / math.sqrt(len(values))
        return Interval(mean - half, mean + half)


class Line(NamedTuple):
    """One row of the experiment on one part of the split."""

    row: str
    steps: int
    runs: int
    loss: Spread
    gap: Spread  # see `Measure.gap`
    violation: Spread  # the largest excess of a constraint over the bound, at least 0


class Run(NamedTuple):
    """One planned run, and what the store has of it."""

    plan: RunPlan
    cell: StoredResult | None  # None: missing


@dataclass(frozen=True, eq=False)
class Measure:
    """How far the losses of the groups lie apart, in the experiment's notion."""

    contrast: Array  # (m, G)
    bound: Array  # (m,)
    absolute: bool

    @staticmethod
    def of(prepared: PreparedExperiment) -> Measure:
        constraint = prepared.constraint(prepared.experiment.notion, prepared.experiment.bound)
        return Measure(constraint.contrast.matrix().numpy(), constraint.bound.double().numpy(), constraint.absolute)

    def gaps(self, losses: Array) -> Array:
        """(states, m) from the losses of everyone and of each group (states, 1 + G)."""
        with np.errstate(invalid="ignore"):  # inf - inf, of a run that diverged
            gaps: Array = losses[:, 1:] @ self.contrast.T
        return np.abs(gaps) if self.absolute else gaps

    def gap(self, losses: Array) -> float:
        """Of two groups: the first one's loss minus the second's; else the largest gap. In the mean over states."""
        if self.contrast.shape[1] > 2:
            return float(self.gaps(losses).max(1).mean())
        with np.errstate(invalid="ignore"):
            return float((losses[:, 1] - losses[:, 2]).mean())

    def violation(self, losses: Array) -> float:
        """The largest excess over the bound, at least 0, in the mean over states."""
        return float(np.maximum(self.gaps(losses) - self.bound, 0.0).max(1).mean())


def gap_in_words(groups: Sequence[str]) -> str:
    """What `Measure.gap` measures.

    >>> gap_in_words(["white", "non-white"])
    'loss of white minus loss of non-white'
    """
    first, second, *others = groups
    return "the largest of the constraints' gaps" if others else f"loss of {first} minus loss of {second}"


def runs_by_row(prepared: PreparedExperiment, store: Store, planned: Sequence[RunBatch]) -> dict[str, list[Run]]:
    """All planned runs of every row, those without results too, in the order of the experiment's rows."""
    found: dict[str, list[Run]] = {row.name: [] for row in prepared.experiment.rows}
    for stack in planned:
        for plan, key in zip(stack.plans, stack.keys, strict=True):
            found[plan.row.name].append(Run(plan, store.get(key)))
    return found


def last_losses(prepared: PreparedExperiment, cell: StoredResult, part: str) -> Array:
    """(last states, 1 + G) mean losses of everyone and of each group on a part of the split."""
    records: NDArray[Any] = np.asarray(cell.tables["records"][part])
    return records[-prepared.experiment.last_states :].astype(np.float64)


def summary(prepared: PreparedExperiment, store: Store, planned: Sequence[RunBatch], part: str) -> list[Line]:
    """Every row's loss and violation on a part, over runs and splits; rows without results are left out."""
    measure = Measure.of(prepared)
    lines = (line_of(prepared, measure, runs, part) for runs in runs_by_row(prepared, store, planned).values())
    return [line for line in lines if line is not None]


def line_of(prepared: PreparedExperiment, measure: Measure, runs: Sequence[Run], part: str) -> Line | None:
    """The line of one row's runs; None where the store has none of them."""
    losses = [last_losses(prepared, run.cell, part) for run in runs if run.cell is not None]
    if not losses:
        return None
    loss = Spread.of([float(one[:, 0].mean()) for one in losses])
    gap, violation = (Spread.of([of(one) for one in losses]) for of in (measure.gap, measure.violation))
    return Line(runs[0].plan.row.name, runs[0].plan.steps, len(losses), loss, gap, violation)


# Student's t ----------------------------------------------------------------------------------------------------------


def student_quantile(probability: float, freedom: int) -> float:
    """Of Student's t with a whole number of degrees of freedom, for a probability above 1/2.

    >>> round(student_quantile(0.975, 19), 6)
    2.093024
    """
    low, high = 0.0, 1.0
    while _student_cdf(high, freedom) < probability:
        low, high = high, 2 * high
    for _ in range(100):  # halvings: down to the last bit
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _student_cdf(t: float, freedom: int) -> float:
    """Finite sums in theta = atan(t / sqrt(freedom)): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    theta = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    within = 2 / math.pi * (theta + sine * total) if odd else sine * total
    return (1 + within) / 2
