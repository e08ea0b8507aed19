"""What was measured for a board: the numbers that scores, tables and the page are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbound.benchmark.problems.catalog import Reference
from fairbound.benchmark.result_file import StoredResult
from fairbound.benchmark.store import Store
from fairbound.benchmark.stored_study import Card, EntryInfo, StoredStudy
from fairbound.benchmark.work_log import WorkLog

Numbers = NDArray[np.float64]
FEASIBLE = 0.3  # of the scale: what counts as feasible for a provisional reference


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
    methods: Sequence[EntryInfo]
    problems: Sequence[Card]
    curves: Mapping[Cell, Curves]
    robust: Mapping[Cell, Sequence[Curves]] = field(default_factory=dict)  # transformed instances
    heldout: Mapping[Cell, HeldOut] = field(default_factory=dict)
    shift: Mapping[Cell, Shift] = field(default_factory=dict)
    failures: Mapping[Cell, str] = field(default_factory=dict)  # why a method has no runs there: a sentence
    systems: Sequence[Mapping[str, Any]] = ()

    @staticmethod
    def read(study: StoredStudy, store: Store, sent: Sequence[SentEntry] = ()) -> Board:
        """Everything that is stored, and entries that were sent; what is missing is left out."""
        found, there = _Measured(), dict[tuple[str, str, str, int], list[StoredResult | None]]()
        keys: dict[tuple[str, str, str, int], str] = {}
        failed = {key: one.sentence for one in WorkLog(store.folder).failures() for key in one.keys}
        for run, result in study.results(store):
            task = (run.entry, run.problem, run.kind, run.instance)
            there.setdefault(task, []).append(result)
            keys.setdefault(task, run.key)
        for (entry, problem, kind, instance), results in there.items():
            complete = [one for one in results if one is not None]
            if len(complete) == len(results):
                found.add((entry, problem), kind, complete)
            elif keys[entry, problem, kind, instance] in failed:
                found.failures[entry, problem] = failed[keys[entry, problem, kind, instance]]
        for one in sent:
            for name, kind, runs in one.results:
                found.add((one.info.name, name), kind, runs)
        return Board(
            version=version("fairbound"),
            rules=study.rules,
            seeds=study.seeds,
            short=study.short,
            methods=[*study.entries, *(one.info for one in sent)],
            problems=[_with_reference(card, found.curves) for card in study.cards],
            curves=found.curves,
            robust=found.robust,
            heldout=found.heldout,
            shift=found.shift,
            failures=found.failures,
            systems=store.systems(),
        )

    def reasons(self) -> dict[Cell, str]:
        """Why a method has no runs on a problem, or none that was ever feasible."""
        found = {cell: f"no runs: {why}" for cell, why in self.failures.items()}
        scales = {one.name: one.reference.scale for one in self.problems}
        for cell, curves in self.curves.items():
            least, scale = float(np.nan_to_num(curves.violation, nan=np.inf).min()), scales.get(cell[1], np.inf)
            if least > scale:
                found[cell] = f"never feasible: its smallest violation is {least:.2g}, the loosest target {scale:.2g}"
        return found

    def problem(self, name: str) -> Card:
        return next(one for one in self.problems if one.name == name)

    def on(self, track: str) -> list[Card]:
        return [one for one in self.problems if track in one.tracks]


class SentEntry(NamedTuple):
    """An entry that was computed elsewhere."""

    info: EntryInfo
    results: Sequence[tuple[str, str, Sequence[StoredResult]]]  # problem, kind of task, its runs


@dataclass(eq=False)
class _Measured:
    """What results say, by method and problem."""

    curves: dict[Cell, Curves] = field(default_factory=dict)
    robust: dict[Cell, list[Curves]] = field(default_factory=dict)
    heldout: dict[Cell, HeldOut] = field(default_factory=dict)
    shift: dict[Cell, Shift] = field(default_factory=dict)
    failures: dict[Cell, str] = field(default_factory=dict)

    def add(self, cell: Cell, kind: str, results: Sequence[StoredResult]) -> None:
        """All runs of a task."""
        if "failure" in results[0].tables:
            self.failures[cell] = str(results[0].tables["failure"]["sentence"][0])
        elif kind == "heldout":
            self.heldout[cell] = _held_out(results)
        elif kind == "robust":
            self.robust.setdefault(cell, []).append(_curves(results))
        else:
            self.curves[cell] = _curves(results)
            if "shift" in results[0].tables:
                self.shift[cell] = _shift(results)


def _with_reference(card: Card, curves: Mapping[Cell, Curves]) -> Card:
    """The frozen one; for a problem that has none the best of this board, which moves with its entries."""
    if not card.provisional:
        return card
    own = [one for (_, name), one in curves.items() if name == card.name]
    feasible = [one.loss[one.violation <= FEASIBLE * card.reference.scale] for one in own]
    losses = np.concatenate(feasible) if feasible else np.zeros(0)
    losses = losses[np.isfinite(losses)]
    start = float(np.median([one.loss[:, 0] for one in own])) if own else float("nan")
    best = float(losses.min()) if len(losses) else float("nan")
    how = "the best of this board; a problem of your own has no frozen reference"
    found = Reference(loss=best, start=start, scale=card.reference.scale, residual=None, exact=False, how=how)
    return replace(card, reference=found)


def _curves(results: Sequence[StoredResult]) -> Curves:
    records = [one.tables["records"] for one in results]
    ends = [one.tables["end"] for one in results]

    def stacked(name: str) -> Any:
        return np.stack([one[name] for one in records]).astype(float)

    return Curves(
        epochs=records[0]["epochs"].astype(float),
        loss=stacked("loss"),
        violation=stacked("violation"),
        mean_violation=stacked("mean_violation"),
        distance=stacked("distance") if "distance" in records[0] else None,
        multiplier_distance=np.array([end["multiplier_distance"][0] for end in ends]),
        step_seconds=float(np.median([one.made.get("step_seconds", np.nan) for one in results])),
        steps=int(results[0].settings["steps"]),
    )


def _held_out(results: Sequence[StoredResult]) -> HeldOut:
    records = [one.tables["records"] for one in results]
    held = [one.tables["heldout"] for one in results]
    return HeldOut(
        train_loss=np.array([one["loss"][-1] for one in records]),
        train_violation=np.array([one["violation"][-1] for one in records]),
        loss=np.array([one["loss"][0] for one in held]),
        violation=np.array([one["violation"][0] for one in held]),
        accuracy=np.array([one["accuracy"][0] for one in held]),
        decisions=tuple(str(one["decision"][0]) for one in held),
    )


def _shift(results: Sequence[StoredResult]) -> Shift:
    found = [one.tables["shift"] for one in results]
    return Shift(
        populations=tuple(map(str, found[0]["population"])),
        loss=np.stack([one["loss"] for one in found]),
        violation=np.stack([one["violation"] for one in found]),
    )
