"""The way from a study to its tasks: what is computed, and what the store notes of it so that pages
can be read.

    plan = Plan(load("board"))
    plan.compute(store, Engine(processes=2))
    plan.stored(store)      # a `StoredStudy`, in the store too

Every task is computed once and stored: a study that was interrupted goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fairbound.benchmark._engine import Done, Engine, ProgressCallback, complete_all
from fairbound.benchmark._entry import TUNING_SEEDS, USUAL_STEPS, Entry, primal_step
from fairbound.benchmark._store import Store
from fairbound.benchmark._stored_study import Card, EntryInfo, StoredRun, StoredStudy
from fairbound.benchmark._study import Study
from fairbound.benchmark._task import Task, TaskKind, TaskRun, examples_of_step
from fairbound.benchmark.board._limits import Limits
from fairbound.benchmark.board._results import best_found
from fairbound.benchmark.board._scoring import FEW_VARIABLES, end_merit
from fairbound.benchmark.problems._catalog import (
    BenchmarkProblem,
    Instance,
    Reference,
    load_problem,
    reference,
)
from fairbound.benchmark.problems._changes import CHANGES, STACKS
from fairbound.benchmark.problems.table import TableSpec, named_constraint
from fairbound.constraints._constraint import Constraint
from fairbound.core import MultiplierMethod
from fairbound.data._dataset import Split
from fairbound.training._hyperparams import structure

# of SSL-ALM: what they pass through the model is the budget of equal examples
REFERENCE_STEPS = 10_000
REFERENCE = Entry(name="SSL-ALM", method="SSLALM", settings={"samples": 2})  # its form in the paper


@dataclass(frozen=True, eq=False)
class Plan:
    """A study's tasks."""

    study: Study
    device: str = "cpu"
    recompute: bool = False
    whole_seeds: int = 0  # of the study's file, where there are fewer here
    limits: Limits | None = None  # of entries that are sent

    # Computing ------------------------------------------------------------------------------------

    def compute(
        self, store: Store, engine: Engine, progress: ProgressCallback | None = None
    ) -> Done:
        """Compute what the store lacks; under the tuned rules first what the choice of settings
        needs."""
        tuning = complete_all(self.tuning(), store, engine, progress)
        tasks = self.tasks(store)
        self.note(store)
        return tuning.plus(complete_all(tasks, store, engine, progress))

    def tasks(self, store: Store) -> list[Task]:
        """All that the page shows."""
        if self.study.page == "report":
            return self._report_tasks
        return list(self._board_tasks(store))

    @cached_property
    def _report_tasks(self) -> list[Task]:
        study, spec = self.study, self._spec
        alike: dict[Hashable, list[tuple[Entry, TaskRun]]] = {}
        for entry in study.entries:
            length = self.steps(entry)
            variant = (entry.notion, entry.bound, entry.fairret, entry.batch, entry.pools)
            key = (
                structure(entry.algorithm(length)),
                entry.primal_on(spec.primal),
                variant,
                length,
            )
            for split in range(study.splits):
                for seed in range(study.seeds):
                    alike.setdefault(key, []).append((entry, TaskRun(0, seed, split)))
        return [self._report_task(members, key[-1]) for key, members in alike.items()]  # type: ignore[index]

    def _report_task(self, members: Sequence[tuple[Entry, TaskRun]], steps: int) -> Task:
        entries = list({entry.name: entry for entry, _ in members}.values())
        number = {entry.name: i for i, entry in enumerate(entries)}
        runs = tuple(one._replace(entry=number[entry.name]) for entry, one in members)
        return Task(
            self._spec,
            tuple(entries),
            runs,
            "groups",
            steps_asked=steps,
            records=self.study.records,
            measured=self.measured,
            splits=self.study.splits,
            device=self.device,
            recompute=self.recompute,
        )

    @property
    def _spec(self) -> TableSpec:
        assert self.study.problem is not None
        return self.study.problem

    @cached_property
    def measured(self) -> tuple[str, ...]:
        """The parts of the split that a report measures."""
        asked = self.study.measured
        return tuple(part for part in self._spec.split.parts if not asked or part in asked)

    @cached_property
    def _built(self) -> Instance:
        """The table of a report."""
        return Task(
            self._spec, self.study.entries[:1], (TaskRun(0, 0),), "groups", splits=self.study.splits
        ).built()

    def steps(self, entry: Entry) -> int:
        """Number of steps of a report's run."""
        own = entry.steps or 1
        length = own if self.study.budget == "paper" else self.equal_steps(entry)
        return length if self.study.steps is None else min(length, self.study.steps)

    def equal_steps(self, entry: Entry) -> int:
        """Steps in which the entry passes as many examples through the model as 10,000 steps of
        SSL-ALM do."""
        reference = examples_of_step(REFERENCE, self._built)
        return max(1, round(REFERENCE_STEPS * reference / examples_of_step(entry, self._built)))

    def tuning(self) -> list[Task]:
        """What the tuned rules choose from."""
        if self.study.rules != "tuned":
            return []
        return [
            self._tuning(name, one)
            for one in self.study.entries
            for name in self.study.problem_names()
            if one.space
        ]

    def _tuning(self, name: str | TableSpec, entry: Entry) -> Task:
        points = tuple(entry.tuning_entries())
        runs = tuple(TaskRun(i, seed) for i in range(len(points)) for seed in TUNING_SEEDS)
        return self._board_task(name, points, "tuning", runs)

    def _board_task(
        self,
        name: str | TableSpec,
        entries: tuple[Entry, ...],
        kind: Any,
        runs: tuple[TaskRun, ...],
    ) -> Task:
        return Task(
            name,
            entries,
            runs,
            kind,
            limit=self.study.steps,
            records=self.study.records,
            recompute=self.recompute,
            limits=self.limits,
        )

    def _board_tasks(self, store: Store) -> Iterator[Task]:
        for name in self.study.problem_names():
            for entry in self.study.entries:
                yield from self.board_tasks_of(name, entry, store)

    def board_tasks_of(self, name: str | TableSpec, entry: Entry, store: Store) -> Iterator[Task]:
        """Tasks on a problem as it is, with its changes, and on several splits."""
        entry = (
            self.chosen(name, entry, store)
            if self.study.rules == "tuned" and entry.space
            else entry
        )
        for kind, runs in board_runs(self.study, load_problem(name)):
            task = self._board_task(name, (entry,), kind, runs)
            yield replace(task, splits=self.study.splits) if kind == "heldout" else task

    def chosen(self, name: str | TableSpec, entry: Entry, store: Store) -> Entry:
        """The entry at the point of its space whose runs end with the least merit, by the median
        over seeds."""
        task = self._tuning(name, entry)
        results, size = [store.get(key) for key in task.keys], len(TUNING_SEEDS)
        tables = [None if one is None else one.tables.get("records") for one in results]
        measured, card = [table for table in tables if table is not None], load_problem(name)
        is_short = task.built().starts([0]).shape[1] <= FEW_VARIABLES
        best = reference(card.name, task.built().source) or best_found(
            [table["loss"] for table in measured],
            [table["violation"] for table in measured],
            card.scale or 1.0,
        )

        def quality(number: int) -> float:
            runs = [
                table for table in tables[number * size : (number + 1) * size] if table is not None
            ]
            ends = [
                end_merit(
                    run["loss"], run["violation"], run.get("distance") if is_short else None, best
                )
                for run in runs
            ]
            return float(np.median(ends)) if len(ends) == size else math.inf

        return task.entries[min(range(len(task.entries)), key=quality)]

    # What the store notes -------------------------------------------------------------------------

    def note(self, store: Store) -> None:
        stored = self.stored(store)
        store.note_study(
            f"{stored.name}-{self.study.digest}{_suffix(stored.sources)}", asdict(stored)
        )

    def stored(self, store: Store) -> StoredStudy:
        """The study with its cards and the keys of its runs."""
        study, tasks = self.study, self.tasks(store)
        runs = [
            StoredRun(
                problem=load_problem(task.problem).name,
                entry=task.entries[one.entry].name,
                kind=task.kind,
                seed=one.seed,
                split=one.split,
                change=one.change,
                key=key,
            )
            for task in tasks
            for one, key in zip(task.runs, task.keys, strict=True)
        ]
        return StoredStudy(
            name=study.name,
            title=study.title,
            reference=study.reference,
            page=study.page,
            budget=study.budget,
            rules=study.rules,
            seeds=study.seeds,
            whole_seeds=self.whole_seeds or study.seeds,
            splits=study.splits,
            records=study.records,
            last_states=study.last_states,
            short=study.short,
            measured=self.measured if study.page == "report" else (),
            entries=[self._method(entry, tasks) for entry in study.entries],
            cards=self.cards,
            runs=runs,
            shows=study.shows,
        )

    def _method(self, entry: Entry, tasks: Sequence[Task]) -> EntryInfo:
        method, rules = entry.algorithm(USUAL_STEPS), self.study.rules
        chosen: dict[str, str] = {}
        if rules == "tuned" and entry.space:
            own = [
                task
                for task in tasks
                if task.kind == "solve" and task.entries[0].name == entry.name
            ]
            chosen = {load_problem(task.problem).name: str(task.asked[0]["method"]) for task in own}
        of_report: dict[str, Any] = {}
        if self.study.page == "report":
            of_report = {
                "steps": self.steps(entry),
                "own_steps": entry.steps or 1,
                "equal_steps": self.equal_steps(entry),
                "examples_per_step": examples_of_step(entry, self._built),
            }
        return EntryInfo(
            name=entry.name,
            method=type(method).__name__,
            settings=entry.described(USUAL_STEPS),
            summary=(type(method).__doc__ or "").strip().partition("\n")[0],
            rules=entry.rules if rules == "default" else rules,
            own_step=bool(entry.primal) or not isinstance(method, MultiplierMethod),
            authors=entry.authors,
            chosen=chosen,
            reference=entry.reference,
            note=entry.note,
            paper=entry.paper,
            **of_report,
        )

    @cached_property
    def cards(self) -> list[Card]:
        """Cards of the study's problems; builds them."""
        return [self._card(name) for name in self.study.problem_names()]

    def _card(self, name: str | TableSpec) -> Card:
        problem = load_problem(name)
        kind: Any = "groups" if self.study.page == "report" else "solve"
        splits = self.study.splits if kind == "groups" else 1
        task = replace(
            self._board_task(name, self.study.entries[:1], kind, (TaskRun(0, 0),)), splits=splits
        )
        instance = task.built()
        parts, spec = instance.problem.constraints.parts, problem.spec
        grouped = (
            len(parts) == 1
            and isinstance(parts[0], Constraint)
            and bool(instance.problem.data.groups)
        )
        groups = len(parts[0].cells) if grouped else None
        bounds = set(parts[0].bound.tolist()) if isinstance(parts[0], Constraint) else set()
        bound = round(bounds.pop() / instance.scale, 6) if grouped and len(bounds) == 1 else None
        own, scale = reference(problem.name, instance.source), problem.scale or 1.0
        unknown = Reference(
            loss=math.nan, start=math.nan, scale=scale, residual=None, exact=False, how=""
        )
        of_table: dict[str, Any] = (
            {}
            if spec is None
            else {
                "data": instance.data_words,
                "rows": instance.unscaled.rows if instance.unscaled else 0,
                "group_names": instance.group_names,
                "notion": spec.notion,
                "parts": tuple(
                    part for part in Split._fields if len(instance.splits[0].pool(part))
                ),
                "gaps": _gaps(spec, instance) if self.study.page == "report" else {},
            }
        )
        primal = primal_step(problem.primal)
        return Card(
            name=problem.name,
            title=problem.title,
            family=problem.family,
            n=instance.starts([0]).shape[1],
            m=instance.problem.m,
            kinds=problem.kinds,
            convex=problem.convex,
            noise=problem.noise,
            examples=instance.examples,
            batch=(
                f"{instance.batch.objective} for the objective, {instance.batch.cell} of each cell"
            ),
            steps=(
                problem.steps if self.study.steps is None else min(problem.steps, self.study.steps)
            ),
            changes=tuple(filter(None, CHANGES)) if problem.changed else (),
            origin=problem.origin,
            license=problem.license,
            source=instance.source,
            reference=own or unknown,
            provisional=own is None,
            groups=groups,
            bound=bound if spec is None or self.study.page == "board" else spec.bound,
            summary=_summary(groups, bound, instance.problem.m),
            primal="the methods' own steps" if primal is None else repr(primal),
            primal_how=problem.primal_how,
            **of_table,
        )


def board_runs(
    study: Study, problem: BenchmarkProblem
) -> list[tuple[TaskKind, tuple[TaskRun, ...]]]:
    """What a board asks of every entry on a problem: the runs of each task."""
    asked: list[tuple[TaskKind, tuple[TaskRun, ...]]] = [
        ("solve", tuple(TaskRun(0, seed) for seed in range(study.seeds)))
    ]
    for stack in STACKS if problem.changed and study.changed_seeds else ():
        runs = tuple(
            TaskRun(0, seed, change=change)
            for change in stack
            for seed in range(study.changed_seeds)
        )
        asked.append(("solve", runs))
    if problem.held_out:
        asked.append(("heldout", tuple(TaskRun(0, i, i) for i in range(study.splits))))
    return asked


def _summary(groups: int | None, bound: float | None, m: int) -> str:
    if groups is None or bound is None:
        return f"{m:,} constraint{'' if m == 1 else 's'}"
    return f"{groups:,} groups, bound {bound:g}"


def _gaps(spec: TableSpec, instance: Instance) -> Mapping[str, Any]:
    """The differences of group losses that a report measures."""
    data, names = instance.problem.data, instance.group_names
    groups = next(iter(data.groups.values()))
    constraint = named_constraint(spec.notion, spec.bound, groups, data.y, names)
    if constraint.statistic is not None or len(constraint.cells) != len(names):
        raise ValueError(
            f"{spec.name} measures {spec.notion!r}, which is not about the losses of the groups;"
            " name such a notion for the problem, and the other one in its entries"
        )
    return {
        "names": list(constraint.names),
        "contrast": constraint.contrast.matrix().tolist(),
        "bound": constraint.bound.double().tolist(),
        "absolute": constraint.absolute,
    }


def _suffix(sources: Sequence[str]) -> str:
    """Suffix of a file's name: studies on real and on generated data are two.

    >>> _suffix(["acs:OK", "acs:VA"]), _suffix(["synthetic:OK"])
    ('', '-synthetic')
    """
    return "-synthetic" if any(source.startswith("synthetic:") for source in sources) else ""
