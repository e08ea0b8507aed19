"""A board: entries x problems under one rule set, planned, computed and read from the store.

    plan = BoardPlan.of(problems, entries, rules="default", seeds=5)
    plan.compute(folder, Engine(processes=2))
    board = plan.read(Store(folder))          # `board_page.write_board(board, "board")`

Every task is computed once and stored: a board that was interrupted goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairbound.benchmark.board.entries import TUNING_SEEDS, Entry, Rules, ours, refuse_doubled
from fairbound.benchmark.board.results import Board, Cell, Curves, HeldOut, MethodInfo, ProblemInfo, Shift
from fairbound.benchmark.board.runs import BoardTask, Kind
from fairbound.benchmark.collection.catalog import BenchmarkProblem, Reference, load, names, reference
from fairbound.benchmark.config import known_name
from fairbound.benchmark.engines import Engine, complete_all
from fairbound.benchmark.executor import Progress
from fairbound.benchmark.result_file import StoredResult
from fairbound.benchmark.store import Store
from fairbound.benchmark.work_log import Failure, WorkLog
from fairbound.constraints.constraint import Constraint

SEEDS, SPLITS = 5, 20
INSTANCES = (1, 2)  # of the robust track
FEASIBLE = 0.3  # of the scale: what counts as feasible where settings are chosen
SHORT_PROBLEMS = (
    "income-ok-race",
    "income-va-marital",
    "neyman-pearson",
    "least-squares-groups",
    "qcqp",
    "grid-world",
)
SHORT_ENTRIES = (
    "SGD",
    "Penalty",
    "Descent-ascent",
    "Adam descent-ascent",
    "nuPI",
    "SSL-ALM",
    "SSL-ALM, lagged",
    "PHR-ALM",
    "SPBM",
    "Tracked SQP",
)
SHORT = {"seeds": 3, "splits": 5, "epochs": 10.0}  # of `fairbound board --short`

Results = Mapping[tuple[str, str, str], Sequence[StoredResult]]


@dataclass(frozen=True, kw_only=True)
class BoardPlan:
    """What a board compares, and how long."""

    problems: tuple[str, ...]
    entries: tuple[Entry, ...]
    rules: Rules = "default"
    seeds: int = SEEDS
    splits: int = SPLITS
    epochs: float | None = None
    instances: tuple[int, ...] = INSTANCES
    short: bool = False

    @staticmethod
    def of(
        problems: Sequence[str] = (),
        entries: Sequence[Entry] = (),
        *,
        rules: Rules = "default",
        seeds: int | None = None,
        splits: int | None = None,
        epochs: float | None = None,
        short: bool = False,
    ) -> BoardPlan:
        """Of all problems and of our entries, where none are given; `short` is a reduced suite for a trial."""
        chosen = tuple(problems) or (SHORT_PROBLEMS if short else names())
        listed = tuple(entries) or tuple(one for one in ours() if not short or one.name in SHORT_ENTRIES)
        if rules == "tuned" and not any(entry.space for entry in listed):
            raise ValueError("the tuned rules need entries with a search space; add space = { tau = [0.01, 1.0] }")
        known = {"seeds": SEEDS, "splits": SPLITS, "epochs": None} | (SHORT if short else {})
        given = {"seeds": seeds, "splits": splits, "epochs": epochs}
        numbers: dict[str, Any] = {name: known[name] if value is None else value for name, value in given.items()}
        for problem in chosen:
            load(problem)  # refuses a name that is unknown
        less = numbers["epochs"] is not None or numbers["seeds"] < SEEDS
        instances = () if short else INSTANCES
        return BoardPlan(
            problems=chosen, entries=listed, rules=rules, instances=instances, short=short or less, **numbers
        )

    def with_entries(self, further: Sequence[Entry], only: Sequence[str] = ()) -> BoardPlan:
        """With entries of the user's own beside ours; with `only`, of ours those alone."""
        known = {entry.name: entry for entry in ours()}
        kept = [known[known_name(name, known, "entry")] for name in only] if only else list(self.entries)
        refuse_doubled([*kept, *further])
        return replace(self, entries=(*kept, *further))

    # Computing --------------------------------------------------------------------------------------------------------

    def compute(self, folder: Path, engine: Engine, progress: Progress | None = None) -> list[Failure]:
        """Compute what the folder lacks; under the tuned rules first what the choice of settings needs.

        Tasks that failed have their sentence on the board, as methods that refuse a problem do.
        """
        store = Store(folder)
        failed = complete_all(self.tuning(), store, engine, progress)[1] if self.rules == "tuned" else []
        return failed + complete_all(self.tasks(store), store, engine, progress)[1]

    def tasks(self, store: Store) -> list[BoardTask]:
        """All that is scored."""
        return [task for name in self.problems for entry in self.entries for task in self._of(name, entry, store)]

    def tuning(self) -> list[BoardTask]:
        """What the tuned rules choose from."""
        return [self._tuning(name, entry) for entry in self.entries for name in self.problems if entry.space]

    def _tuning(self, name: str, entry: Entry) -> BoardTask:
        return BoardTask(name, tuple(entry.tuning_entries()), "tuning", TUNING_SEEDS, epochs=self.epochs)

    def _of(self, name: str, entry: Entry, store: Store) -> Iterator[BoardTask]:
        seeds, tracks = tuple(range(self.seeds)), load(name).tracks
        entry = self.chosen(name, entry, store) if self.rules == "tuned" and entry.space else entry
        task = BoardTask(name, (entry,), "solve", seeds, epochs=self.epochs)
        yield task
        if "robust" in tracks and self.rules != "tuned":
            yield from (replace(task, kind="robust", instance=instance) for instance in self.instances)
        if "heldout" in tracks:
            yield replace(task, kind="heldout", seeds=tuple(range(self.splits)), splits=self.splits)

    def chosen(self, name: str, entry: Entry, store: Store) -> Entry:
        """The entry at the best point of its space: feasible first, then the smallest loss, by medians over seeds."""
        task = self._tuning(name, entry)
        found = [store.get(key) for key in task.result_keys()]
        scale = self._reference(load(name), task.instance_of().source, {}).scale

        def quality(number: int) -> tuple[bool, float]:
            own = found[number * len(TUNING_SEEDS) : (number + 1) * len(TUNING_SEEDS)]
            ends = [one.tables["records"] for one in own if one is not None and "records" in one.tables]
            if len(ends) < len(TUNING_SEEDS):
                return True, float("inf")
            loss, violation = (np.median([records[what][-1] for records in ends]) for what in ("loss", "violation"))
            if not np.isfinite(loss):
                return True, float("inf")
            feasible = violation <= FEASIBLE * scale
            return not feasible, float(loss if feasible else violation)

        return task.entries[min(range(len(task.entries)), key=quality)]

    # Reading ----------------------------------------------------------------------------------------------------------

    def read(self, store: Store, sent: Sequence[SentEntry] = ()) -> Board:
        """Everything that is stored, and entries that were sent; what is missing is left out."""
        found = _Measured()
        failed = {key: one.sentence for one in WorkLog(store.folder).failures() for key in one.keys}
        for entry in self.entries:
            for problem in self.problems:
                for task in self._of(problem, entry, store):
                    keys, cell = task.result_keys(), (entry.name, load(problem).name)
                    results = [one for one in map(store.get, keys) if one is not None]
                    if len(results) == len(task.runs):
                        found.add(cell, task.kind, results)
                    elif keys[0] in failed:
                        found.failures[cell] = failed[keys[0]]
        for one in sent:
            for name, kind, runs in one.results:
                found.add((one.info.name, name), kind, runs)
        methods = [_method(entry, self.rules, found.chosen.get(entry.name, {})) for entry in self.entries]
        return Board(
            version=version("fairbound"),
            rules=self.rules,
            seeds=self.seeds,
            short=self.short,
            methods=[*methods, *(one.info for one in sent)],
            problems=[self._card(name, found.curves) for name in self.problems],
            curves=found.curves,
            robust=found.robust,
            heldout=found.heldout,
            shift=found.shift,
            failures=found.failures,
            systems=store.systems(),
        )

    def _card(self, name: str, curves: Mapping[Cell, Curves]) -> ProblemInfo:
        problem = load(name)
        task = BoardTask(name, self.entries[:1], "solve", (0,), epochs=self.epochs)
        instance = task.instance_of()
        parts = instance.problem.constraints.parts
        grouped = len(parts) == 1 and isinstance(parts[0], Constraint) and bool(instance.problem.data.groups)
        groups = len(parts[0].cells) if grouped else None
        bounds = set(parts[0].bound.tolist()) if isinstance(parts[0], Constraint) else set()
        bound = round(bounds.pop() / instance.scale, 6) if grouped and len(bounds) == 1 else None
        own = reference(problem.name, instance.source)
        return ProblemInfo(
            name=problem.name,
            title=problem.title,
            family=problem.family,
            tracks=problem.tracks,
            n=instance.starts([0]).shape[1],
            m=instance.problem.m,
            kinds=problem.kinds,
            convex=problem.convex,
            noise=problem.noise,
            examples=instance.examples,
            batch=f"{instance.batch.objective} for the objective, {instance.batch.cell} of each cell",
            epochs=task.budget,
            origin=problem.origin,
            license=problem.license,
            source=instance.source,
            transformations=problem.transformations,
            reference=self._reference(problem, instance.source, curves),
            provisional=own is None,
            groups=groups,
            bound=bound,
            summary=_summary(groups, bound, instance.problem.m),
        )

    def _reference(self, problem: BenchmarkProblem, source: str, curves: Mapping[Cell, Curves]) -> Reference:
        """The frozen one; for a problem that has none the best of this board, which moves with its entries."""
        found = reference(problem.name, source)
        if found is not None:
            return found
        own = [one for (_, name), one in curves.items() if name == problem.name]
        scale = problem.scale or 1.0
        feasible = [one.loss[one.violation <= FEASIBLE * scale] for one in own]
        losses = np.concatenate(feasible) if feasible else np.zeros(0)
        losses = losses[np.isfinite(losses)]
        start = float(np.median([one.loss[:, 0] for one in own])) if own else float("nan")
        best = float(losses.min()) if len(losses) else float("nan")
        how = "the best of this board; a problem of your own has no frozen reference"
        return Reference(loss=best, start=start, scale=scale, residual=None, exact=False, how=how)


class SentEntry(NamedTuple):
    """An entry that was computed elsewhere."""

    info: MethodInfo
    results: Sequence[tuple[str, Kind, Sequence[StoredResult]]]  # problem, kind of task, its runs


@dataclass(eq=False)
class _Measured:
    """What results say, by method and problem."""

    curves: dict[Cell, Curves] = field(default_factory=dict)
    robust: dict[Cell, list[Curves]] = field(default_factory=dict)
    heldout: dict[Cell, HeldOut] = field(default_factory=dict)
    shift: dict[Cell, Shift] = field(default_factory=dict)
    failures: dict[Cell, str] = field(default_factory=dict)
    chosen: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, cell: Cell, kind: Kind, results: Sequence[StoredResult]) -> None:
        """All runs of a task."""
        if "failure" in results[0].tables:
            self.failures[cell] = str(results[0].tables["failure"]["sentence"][0])
        elif kind == "heldout":
            self.heldout[cell] = _held_out(results)
        elif kind == "robust":
            self.robust.setdefault(cell, []).append(_curves(results))
        else:
            self.curves[cell] = _curves(results)
            self.chosen.setdefault(cell[0], {})[cell[1]] = results[0].settings["algorithm"]
            if "shift" in results[0].tables:
                self.shift[cell] = _shift(results)


def _summary(groups: int | None, bound: float | None, m: int) -> str:
    if groups is None or bound is None:
        return f"{m:,} constraint{'' if m == 1 else 's'}"
    return f"{groups:,} groups, bound {bound:g}"


def _method(entry: Entry, rules: str, chosen: Mapping[str, str]) -> MethodInfo:
    method = entry.algorithm(1000)
    return MethodInfo(
        name=entry.name,
        method=type(method).__name__,
        settings=entry.described(1000),
        summary=(type(method).__doc__ or "").strip().partition("\n")[0],
        rules=entry.rules if rules == "default" else rules,
        authors=entry.authors,
        chosen=chosen if rules == "tuned" and entry.space else {},
    )


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
        step_seconds=float(np.median([end["step_seconds"][0] for end in ends])),
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
