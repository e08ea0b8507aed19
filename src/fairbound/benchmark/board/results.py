"""What was measured for a board: the numbers that shares, tables and the page are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbound.benchmark.board.scoring import SHORT, TARGET, TARGETS, end_merit, merit, target_of
from fairbound.benchmark.problems.catalog import Reference
from fairbound.benchmark.problems.changes import CHANGES
from fairbound.benchmark.result_file import StoredResult
from fairbound.benchmark.store import Store
from fairbound.benchmark.stored_study import Card, EntryInfo, StoredStudy
from fairbound.benchmark.work_log import WorkLog

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Curves:
    """Runs of a method on an instance along the way; R seeds, K recorded points."""

    share: Numbers  # (K,) of the budget that is used
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


class InstanceName(NamedTuple):
    """A problem, as it is or with a change."""

    problem: str
    change: str = ""

    def __str__(self) -> str:
        return f"{self.problem} ({self.change})" if self.change else self.problem


Cell = tuple[str, InstanceName]  # method, instance


@dataclass(frozen=True, eq=False, kw_only=True)
class Board:
    """Everything that was measured under one rule set."""

    version: str  # of rules, code and board together
    rules: str
    seeds: int
    short: bool  # a trial: fewer problems, seeds or steps than the board's
    methods: Sequence[EntryInfo]
    problems: Sequence[Card]
    curves: Mapping[Cell, Curves]
    heldout: Mapping[tuple[str, str], HeldOut] = field(default_factory=dict)  # by method and problem
    failures: Mapping[Cell, str] = field(default_factory=dict)  # why a method has no runs there: a sentence
    missing: int = 0  # runs that are not stored yet
    systems: Sequence[Mapping[str, Any]] = ()

    @staticmethod
    def read(study: StoredStudy, store: Store, sent: Sequence[SentEntry] = ()) -> Board:
        """Everything that is stored, and entries that were sent; what is missing is left out."""
        missing, measured, by_task = 0, _Measured(), dict[tuple[str, InstanceName, str], list[StoredResult | None]]()
        keys: dict[tuple[str, InstanceName, str], str] = {}
        failed = {key: one.sentence for one in WorkLog(store.folder).failures() for key in one.keys}
        for run, result in study.results(store):
            task = (run.entry, InstanceName(run.problem, run.change), run.kind)
            by_task.setdefault(task, []).append(result)
            missing += result is None
            keys.setdefault(task, run.key)
        for (entry, instance, kind), results in by_task.items():
            complete = [one for one in results if one is not None]
            if len(complete) == len(results):
                measured.add((entry, instance), kind, complete)
            elif keys[entry, instance, kind] in failed:
                measured.failures[entry, instance] = failed[keys[entry, instance, kind]]
        for one in sent:
            for instance, kind, runs in one.results:
                measured.add((one.info.name, instance), kind, runs)
        return Board(
            version=version("fairbound"),
            rules=study.rules,
            seeds=study.seeds,
            short=study.short,
            methods=[*study.entries, *(one.info for one in sent)],
            problems=[_with_reference(card, measured.curves) for card in study.cards],
            curves=measured.curves,
            heldout=measured.heldout,
            failures=measured.failures,
            missing=missing,
            systems=store.systems(),
        )

    def problem(self, name: str) -> Card:
        return next(one for one in self.problems if one.name == name)

    @cached_property
    def instances(self) -> list[InstanceName]:
        """All that some method was run on."""
        measured = {instance for _, instance in [*self.curves, *self.failures]}
        listed = [InstanceName(card.name, change) for card in self.problems for change in ("", *card.changes)]
        return [instance for instance in listed if instance in measured]

    @cached_property
    def dropped(self) -> list[InstanceName]:
        """Those that training without constraints solves in most runs: they ask nothing."""
        plain = [method.name for method in self.methods if method.method == "SGD" and not method.own_step]
        return [one for one in self.instances if any(self.solved(name, one).mean() > 0.5 for name in plain)]

    @cached_property
    def counted(self) -> list[InstanceName]:
        return [instance for instance in self.instances if instance not in self.dropped]

    def merits(self, method: str, instance: InstanceName) -> Numbers:
        """(R, K) of runs along the way."""
        runs = self.curves[method, instance]
        return merit(runs.loss, runs.violation, self.distance(method, instance), self._reference(instance))

    def distance(self, method: str, instance: InstanceName) -> Numbers | None:
        """(R, K) to the solution, where it is the merit."""
        return self.curves[method, instance].distance if self.problem(instance.problem).n <= SHORT else None

    def _reference(self, instance: InstanceName) -> Reference:
        return self.problem(instance.problem).reference

    def ends(self, method: str, instance: InstanceName) -> Numbers:
        """(R,) merits at the end; empty without runs."""
        runs = self.curves.get((method, instance))
        if runs is None:
            return np.empty(0)
        return end_merit(runs.loss, runs.violation, self.distance(method, instance), self._reference(instance))

    def solved(self, method: str, instance: InstanceName, target: float = TARGET) -> Numbers:
        """(R,) 1 for a run that solves the instance, else 0; a method without runs solves none."""
        ends = self.ends(method, instance)
        within = target_of(CHANGES[instance.change].slack, target)
        return (ends <= within).astype(float) if ends.size else np.zeros(1)

    def reasons(self) -> dict[Cell, str]:
        """Why a method has no runs on an instance, or none that was ever feasible."""
        found = {cell: f"no runs: {why}" for cell, why in self.failures.items()}
        for (method, instance), curves in self.curves.items():
            loosest = TARGETS[0] * self.problem(instance.problem).reference.scale
            least = float(np.nan_to_num(curves.violation, nan=np.inf).min())
            if least > loosest:
                words = f"never feasible: its smallest violation is {least:.2g}, the loosest target {loosest:.2g}"
                found[method, instance] = words
        return found


class SentEntry(NamedTuple):
    """An entry that was computed elsewhere."""

    info: EntryInfo
    results: Sequence[tuple[InstanceName, str, Sequence[StoredResult]]]  # instance, kind of task, its runs


@dataclass(eq=False)
class _Measured:
    """What results say, by method and instance."""

    curves: dict[Cell, Curves] = field(default_factory=dict)
    heldout: dict[tuple[str, str], HeldOut] = field(default_factory=dict)
    failures: dict[Cell, str] = field(default_factory=dict)

    def add(self, cell: Cell, kind: str, results: Sequence[StoredResult]) -> None:
        """All runs of a task on an instance."""
        if "failure" in results[0].tables:
            self.failures[cell] = str(results[0].tables["failure"]["sentence"][0])
        elif kind == "heldout":
            self.heldout[cell[0], cell[1].problem] = _held_out(results)
        else:
            self.curves[cell] = _curves(results)


def _with_reference(card: Card, curves: Mapping[Cell, Curves]) -> Card:
    """The frozen one; for a problem that has none the best of this board, which moves with its entries."""
    if not card.provisional:
        return card
    runs = [one for (_, instance), one in curves.items() if instance == InstanceName(card.name)]
    found = best_found([one.loss for one in runs], [one.violation for one in runs], card.reference.scale)
    return replace(card, reference=found)


def best_found(losses: Sequence[Numbers], violations: Sequence[Numbers], scale: float) -> Reference:
    """The least loss of states that are feasible within the loosest target."""
    feasible = [loss[violation <= TARGETS[0] * scale] for loss, violation in zip(losses, violations, strict=True)]
    known = np.concatenate([*feasible, np.zeros(0)])
    known = known[np.isfinite(known)]
    start = float(np.median([loss[..., 0] for loss in losses])) if losses else float("nan")
    best = float(known.min()) if len(known) else float("nan")
    how = "the best of this board; a problem of your own has no frozen reference"
    return Reference(loss=best, start=start, scale=scale, residual=None, exact=False, how=how)


def _curves(results: Sequence[StoredResult]) -> Curves:
    records = [one.tables["records"] for one in results]
    ends = [one.tables["end"] for one in results]

    def stacked(name: str) -> Any:
        return np.stack([one[name] for one in records]).astype(float)

    return Curves(
        share=records[0]["step"].astype(float) / int(results[0].settings["steps"]),
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
