"""What was measured for a board: the numbers that scores, tables and the page are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound.benchmark.collection.catalog import Reference

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class MethodInfo:
    """An entry, as the page shows it."""

    name: str  # unique on the board
    method: str  # the class
    settings: str  # as Python text: SSLALM(tau=0.05, ...)
    summary: str  # one line
    rules: str  # default, tuned, self-tuning
    authors: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)  # tuned: settings by problem


@dataclass(frozen=True, eq=False, kw_only=True)
class ProblemInfo:
    """A problem's card."""

    name: str
    title: str
    family: str
    tracks: tuple[str, ...]
    n: int
    m: int
    kinds: str
    convex: bool
    noise: str
    examples: int  # of an epoch
    batch: str
    epochs: float
    origin: str
    license: str
    source: str  # of the data
    transformations: tuple[str, ...]
    reference: Reference
    provisional: bool = False  # the reference is the best of this board: a problem of the user's own
    groups: int | None = None  # of a table
    bound: float | None = None
    summary: str = ""  # "2 groups, bound 0.02": what a reader looks for

    @property
    def synthetic(self) -> bool:
        return self.source.partition(":")[0] == "synthetic"


@dataclass(frozen=True, eq=False, kw_only=True)
class Curves:
    """Runs of a method on a problem along the way; R seeds, K recorded points."""

    epochs: Numbers  # (K,) examples through the model, per training example
    loss: Numbers  # (R, K) over all training examples
    violation: Numbers  # (R, K) the largest over constraints, at least 0; in units of the constraint as stated
    mean_violation: Numbers  # (R, K)
    distance: Numbers | None = None  # (R, K) |x - x*| / |x0 - x*|
    multiplier_distance: Numbers | None = None  # (R,) |y - y*| / max(1, |y*|) at the end; NaN for a method without
    step_seconds: float = float("nan")  # CPU seconds of a step of one run
    steps: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class HeldOut:
    """The ends of S runs, each on another split."""

    train_loss: Numbers  # (S,)
    train_violation: Numbers
    loss: Numbers  # on held-out examples
    violation: Numbers
    accuracy: Numbers  # NaN where it has no meaning
    decisions: tuple[str, ...]  # of the verdict: holds, violated, undecided


@dataclass(frozen=True, eq=False, kw_only=True)
class Shift:
    """The ends of R runs, audited in other populations."""

    populations: tuple[str, ...]
    loss: Numbers  # (R, populations)
    violation: Numbers  # (R, populations)


Cell = tuple[str, str]  # method, problem


@dataclass(frozen=True, eq=False, kw_only=True)
class Board:
    """Everything that was measured under one rule set."""

    version: str  # of rules, code and board together
    rules: str
    seeds: int
    short: bool  # a trial: fewer seeds, problems or epochs than the board's
    methods: Sequence[MethodInfo]
    problems: Sequence[ProblemInfo]
    curves: Mapping[Cell, Curves]
    robust: Mapping[Cell, Sequence[Curves]] = field(default_factory=dict)  # transformed instances
    heldout: Mapping[Cell, HeldOut] = field(default_factory=dict)
    shift: Mapping[Cell, Shift] = field(default_factory=dict)
    failures: Mapping[Cell, str] = field(default_factory=dict)  # why a method has no runs there: a sentence
    systems: Sequence[Mapping[str, Any]] = ()

    def reasons(self) -> dict[Cell, str]:
        """Why a method has no runs on a problem, or none that was ever feasible."""
        found = {cell: f"no runs: {why}" for cell, why in self.failures.items()}
        scales = {one.name: one.reference.scale for one in self.problems}
        for cell, curves in self.curves.items():
            least, scale = float(np.nan_to_num(curves.violation, nan=np.inf).min()), scales.get(cell[1], np.inf)
            if least > scale:
                found[cell] = f"never feasible: its smallest violation is {least:.2g}, the loosest target {scale:.2g}"
        return found

    def problem(self, name: str) -> ProblemInfo:
        return next(one for one in self.problems if one.name == name)

    def on(self, track: str) -> list[ProblemInfo]:
        return [one for one in self.problems if track in one.tracks]
