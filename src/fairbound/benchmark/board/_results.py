"""What was measured for a board: the numbers that shares, tables and the page are made from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._store import Store
from fairbound.benchmark._stored_study import Card, EntryInfo, StoredStudy
from fairbound.benchmark._work_log import WorkLog
from fairbound.benchmark.board._scoring import (
    FEW_VARIABLES,
    TARGET,
    TARGETS,
    Numbers,
    Shares,
    bootstrap,
    end_merit,
    merit,
    reached,
    target_of,
)
from fairbound.benchmark.problems._catalog import Reference
from fairbound.benchmark.problems._changes import CHANGES

BASELINE = "DescentAscent"  # with which every method is compared
PARTS = {"stated": "as stated", "changed": "changed"}  # of the instances


@dataclass(frozen=True, eq=False, kw_only=True)
class Curves:
    """Runs of a method on an instance along the way; R seeds, K recorded points."""

    share: Numbers  # (K,) of the budget that is used
    loss: Numbers  # (R, K) over all training examples
    # (R, K) the largest over constraints, at least 0; in units of the constraint as stated
    violation: Numbers
    mean_violation: Numbers  # (R, K)
    distance: Numbers | None = None  # (R, K) |x - x*| / |x0 - x*|
    # (R,) |y - y*| / max(1, |y*|) at the end; NaN for a method without
    multiplier_distance: Numbers | None = None
    step_seconds: float = float("nan")  # CPU seconds of a step of one run


@dataclass(frozen=True, eq=False, kw_only=True)
class HeldOutScores:
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


MethodInstance = tuple[str, InstanceName]  # method, instance


@dataclass(frozen=True, eq=False, kw_only=True)
class Board:
    """Everything that was measured under one rule set."""

    name: str
    title: str
    rules: str
    seeds: int
    short: bool  # a trial: fewer problems, seeds or steps than the board's
    methods: Sequence[EntryInfo]
    problems: Sequence[Card]
    curves: Mapping[MethodInstance, Curves]
    # by method and problem
    heldout: Mapping[tuple[str, str], HeldOutScores] = field(default_factory=dict)
    # why a method has no runs there: a sentence
    failures: Mapping[MethodInstance, str] = field(default_factory=dict)
    missing: int = 0  # runs that are not stored yet

    @staticmethod
    def read(study: StoredStudy, store: Store, sent: Sequence[SentEntry] = ()) -> Board:
        """Everything that is stored, and entries that were sent; what is missing is left out."""
        # by kind: keys and results of runs
        tasks = dict[tuple[MethodInstance, str], list[tuple[str, StoredResult | None]]]()
        for run, result in study.results(store):
            cell = run.entry, InstanceName(run.problem, run.change)
            tasks.setdefault((cell, run.kind), []).append((run.key, result))
        for entry in sent:
            for instance, kind, results in entry.results:
                tasks[(entry.info.name, instance), kind] = [
                    (result.key, result) for result in results
                ]
        failed = {
            key: failure.sentence
            for failure in WorkLog(store.folder).failures()
            for key in failure.keys
        }
        curves, heldout, failures = (
            dict[MethodInstance, Curves](),
            dict[tuple[str, str], HeldOutScores](),
            dict[MethodInstance, str](),
        )
        missing = 0
        for (cell, kind), runs in tasks.items():
            stored, first = [result for _, result in runs if result is not None], runs[0][0]
            missing += len(runs) - len(stored)
            if len(stored) < len(runs):
                failures |= {cell: failed[first]} if first in failed else {}
            elif "failure" in stored[0].tables:
                failures[cell] = str(stored[0].tables["failure"]["sentence"][0])
            elif kind == "heldout":
                heldout[cell[0], cell[1].problem] = _held_out(stored)
            else:
                curves[cell] = _curves(stored)
        return Board(
            name=study.name,
            title=study.title,
            rules=study.rules,
            seeds=study.seeds,
            short=study.short,
            methods=[*study.entries, *(entry.info for entry in sent)],
            problems=[_with_reference(card, curves) for card in study.cards],
            curves=curves,
            heldout=heldout,
            failures=failures,
            missing=missing,
        )

    def problem(self, name: str) -> Card:
        return next(one for one in self.problems if one.name == name)

    @cached_property
    def instances(self) -> list[InstanceName]:
        """All that some method was run on."""
        measured = {instance for _, instance in [*self.curves, *self.failures]}
        listed = [
            InstanceName(card.name, change)
            for card in self.problems
            for change in ("", *card.changes)
        ]
        return [instance for instance in listed if instance in measured]

    @cached_property
    def dropped(self) -> list[InstanceName]:
        """Instances that training without constraints solves in most runs: they ask nothing."""
        plain = [
            method.name for method in self.methods if method.method == "SGD" and not method.own_step
        ]
        return [
            one
            for one in self.instances
            if any(self.solved(name, one).mean() > 0.5 for name in plain)
        ]

    @cached_property
    def counted(self) -> list[InstanceName]:
        return [instance for instance in self.instances if instance not in self.dropped]

    def merits(self, method: str, instance: InstanceName) -> Numbers:
        """(R, K) of runs along the way."""
        runs = self.curves[method, instance]
        return merit(
            runs.loss, runs.violation, self.distance(method, instance), self._reference(instance)
        )

    def distance(self, method: str, instance: InstanceName) -> Numbers | None:
        """(R, K) to the solution, where it is the merit."""
        return (
            self.curves[method, instance].distance
            if self.problem(instance.problem).n <= FEW_VARIABLES
            else None
        )

    def _reference(self, instance: InstanceName) -> Reference:
        return self.problem(instance.problem).reference

    def ends(self, method: str, instance: InstanceName) -> Numbers:
        """(R,) merits at the end; empty without runs."""
        runs = self.curves.get((method, instance))
        if runs is None:
            return np.empty(0)
        return end_merit(
            runs.loss, runs.violation, self.distance(method, instance), self._reference(instance)
        )

    def solved(self, method: str, instance: InstanceName, target: float = TARGET) -> Numbers:
        """(R,) 1 for a run that solves the instance, else 0; a method without runs solves none."""
        ends = self.ends(method, instance)
        within = target_of(CHANGES[instance.change].slack, target)
        return (ends <= within).astype(float) if ends.size else np.zeros(1)

    def reasons(self) -> dict[MethodInstance, str]:
        """Why a method has no runs on an instance, or none that was ever feasible."""
        found = {cell: f"no runs: {why}" for cell, why in self.failures.items()}
        for (method, instance), curves in self.curves.items():
            loosest = TARGETS[0] * self.problem(instance.problem).reference.scale
            least = float(np.nan_to_num(curves.violation, nan=np.inf).min())
            if least > loosest:
                words = (
                    f"never feasible: its smallest violation is {least:.2g}, the loosest target"
                    f" {loosest:.2g}"
                )
                found[method, instance] = words
        return found

    # Shares ---------------------------------------------------------------------------------------

    @cached_property
    def names(self) -> list[str]:
        return [method.name for method in self.methods]

    @cached_property
    def order(self) -> list[int]:
        """Order of the methods, the largest share first."""
        return self.shares[self.parts[0]].order if self.shares else list(range(len(self.methods)))

    @property
    def ranked(self) -> list[str]:
        return [self.names[i] for i in self.order]

    def instances_of(self, part: str) -> dict[str, list[InstanceName]]:
        """Instances that count, by problem."""
        by_problem: dict[str, list[InstanceName]] = {}
        for instance in self.counted:
            if bool(instance.change) == (part == "changed"):
                by_problem.setdefault(instance.problem, []).append(instance)
        return by_problem

    @cached_property
    def parts(self) -> list[str]:
        """Parts with an instance that counts."""
        return [part for part in PARTS if self.instances_of(part)]

    @cached_property
    def shares(self) -> dict[str, Shares]:
        """Shares of the instances that are solved, by part."""
        return {
            part: bootstrap(self._runs(list(self.instances_of(part).values())))
            for part in self.parts
        }

    def _runs(self, problems: Sequence[Sequence[InstanceName]]) -> list[list[list[Numbers]]]:
        return [
            [[self.solved(name, one) for one in problem] for problem in problems]
            for name in self.names
        ]

    def share(
        self, method: str, instances: Sequence[InstanceName], target: float = TARGET
    ) -> float:
        """Share of instances that a method solves; the mean over problems, then over their
        instances."""
        by_problem: dict[str, list[float]] = {}
        for one in instances:
            by_problem.setdefault(one.problem, []).append(
                float(self.solved(method, one, target).mean())
            )
        return (
            float(np.mean([np.mean(shares) for shares in by_problem.values()]))
            if by_problem
            else math.nan
        )

    @cached_property
    def changes(self) -> dict[str, list[InstanceName]]:
        """Changes that were measured, with the instances that count."""
        found = {
            change: [one for one in self.counted if one.change == change]
            for change in CHANGES
            if change
        }
        return {change: instances for change, instances in found.items() if instances}

    @cached_property
    def baseline(self) -> int | None:
        """The method with which the others are compared."""
        places = [i for i, method in enumerate(self.methods) if method.method == BASELINE]
        return places[0] if places else None

    @cached_property
    def alike(self) -> list[InstanceName]:
        """Instances on which all methods have the same share: they separate nothing."""
        return [
            one
            for one in self.counted
            if len({self.solved(name, one).mean() for name in self.names}) == 1
        ]

    @cached_property
    def unsolved(self) -> list[InstanceName]:
        """Instances that no run of any method solves."""
        return [
            one
            for one in self.counted
            if not any(self.solved(name, one).any() for name in self.names)
        ]

    @cached_property
    def families(self) -> dict[str, list[str]]:
        """Classes of problems, with those that count as they are stated."""
        found: dict[str, list[str]] = {}
        for name in self.instances_of("stated"):
            found.setdefault(self.problem(name).family, []).append(name)
        return dict(sorted(found.items()))

    def profile(self, method: str, problems: Sequence[str], shares: Numbers) -> Numbers:
        """The share of (problem, target, run) that is reached within these shares of the budget."""
        lines = []
        for name in problems:
            curves = self.curves.get((method, InstanceName(name)))
            if curves is None:
                lines.append(np.zeros(len(shares)))
                continue
            hits = reached(self.merits(method, InstanceName(name)), curves.share)
            lines.append((hits[..., None] <= shares).mean((0, 1)))
        return np.asarray(np.mean(lines, axis=0))

    def decisions(self, method: str, problem: str) -> Counter[str] | None:
        """How often the bound holds on held-out data, is violated, or neither is certain."""
        held = self.heldout.get((method, problem))
        return None if held is None else Counter(held.decisions)

    @cached_property
    def default_problem(self) -> Card:
        """Two groups and a bound of 0.02 where that was measured on held-out data."""
        heldout = [
            one for one in self.problems if any(name == one.name for _, name in self.heldout)
        ]
        two = [
            one
            for one in heldout
            if one.groups == 2 and one.bound is not None and math.isclose(one.bound, 0.02)
        ]
        return [*two, *heldout, *self.problems][0]


class SentEntry(NamedTuple):
    """An entry that was computed elsewhere."""

    info: EntryInfo
    # instance, kind of task, its runs
    results: Sequence[tuple[InstanceName, str, Sequence[StoredResult]]]


def _with_reference(card: Card, curves: Mapping[MethodInstance, Curves]) -> Card:
    """The frozen one; for a problem that has none the best of this board, which moves with its
    entries."""
    if not card.provisional:
        return card
    runs = [one for (_, instance), one in curves.items() if instance == InstanceName(card.name)]
    found = best_found(
        [one.loss for one in runs], [one.violation for one in runs], card.reference.scale
    )
    return replace(card, reference=found)


def best_found(losses: Sequence[Numbers], violations: Sequence[Numbers], scale: float) -> Reference:
    """The least loss of states that are feasible within the loosest target."""
    feasible = [
        loss[violation <= TARGETS[0] * scale]
        for loss, violation in zip(losses, violations, strict=True)
    ]
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
    )


def _held_out(results: Sequence[StoredResult]) -> HeldOutScores:
    records = [one.tables["records"] for one in results]
    held = [one.tables["heldout"] for one in results]
    return HeldOutScores(
        train_loss=np.array([one["loss"][-1] for one in records]),
        train_violation=np.array([one["violation"][-1] for one in records]),
        loss=np.array([one["loss"][0] for one in held]),
        violation=np.array([one["violation"][0] for one in held]),
        accuracy=np.array([one["accuracy"][0] for one in held]),
        decisions=tuple(str(one["decision"][0]) for one in held),
    )
