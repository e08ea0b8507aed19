"""A task: runs of one problem that are computed together, planned, named and carried out.

Its runs are (entry, seed, split). They share a method's structure, so that a step of all of them is
one `vmap`; many are computed in batches. A batch is computed as a whole whenever one of its results
is missing: what shares a batch changes rounding, and a benchmark that was interrupted must end with
the same results as one that was not.

A result is named by what was asked (`Task.asked`): the problem, the entry with its settings, seed,
split, length, and the checksum of the data. The code that computed it stands beside it, with the
machine and the seconds.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fairbound.benchmark._budget import examples_per_step, step_facts
from fairbound.benchmark._computing import compute
from fairbound.benchmark._entry import USUAL_STEPS, Entry
from fairbound.benchmark._environment import made_by
from fairbound.benchmark._fingerprint import checksum, code_hash, file_hash
from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._store import Store
from fairbound.benchmark.board._limits import Limits, complete_limited
from fairbound.benchmark.problems._catalog import BenchmarkProblem, Instance, load_problem
from fairbound.benchmark.problems._changes import CHANGES, Change
from fairbound.benchmark.problems._salted import salted
from fairbound.benchmark.problems.table import TableSpec

RECORDS = 40  # points of a run against targets, evenly spaced in the logarithm of steps
FIRST_RECORD = 0.005  # of the budget
MAX_BATCH_RUNS = 48  # more are no faster a run, and divide badly among processes
MAX_SUBPROBLEM = (
    # constraints that a method with a subproblem is given: with 90 a step takes 50 ms, with 200
    # most of a second
    50
)
# Of a step of all runs, from which an H200 is at least twice as quick as a CPU's core
# (benchmarks/gpu_board.py --rule): launching a step takes it 6.6 ms at any size; a core takes 7.3
# ms for 3.5e7, 19 for 1.4e8 and 97 for 7e8.
GPU_MULTIPLICATIONS = 1e8
SUBPROBLEM_WORK = 5  # about how much longer a step with a subproblem takes
STEP_OVERHEAD_EXAMPLES = 30  # what a step costs beside its examples, as so many of them

# "groups": losses by group; else against targets
TaskKind = Literal["groups", "solve", "heldout", "tuning"]


class TaskRun(NamedTuple):
    """One run of a task."""

    entry: int  # its number in the task
    seed: int
    split: int = 0
    change: str = ""  # of `changes.CHANGES`


@dataclass(frozen=True)
class Task:
    """Runs of entries of one structure on a problem, in texts and numbers, so that another process
    computes them."""

    problem: str | TableSpec  # a name, a file, or a table
    entries: tuple[Entry, ...]
    runs: tuple[TaskRun, ...]
    kind: TaskKind
    steps_asked: int | None = None  # None: the problem's budget
    limit: int | None = None  # on the steps of that budget, for a trial
    records: int = RECORDS
    measured: tuple[str, ...] = ()  # of "groups": the parts of the split
    splits: int = 1
    # that computes it; no part of the results' names, as the model of a CPU is none
    device: str = "cpu"
    salt: str = ""  # other coordinates of the variables, for a check: `problems.salted`
    recompute: bool = False  # whether a result of other code counts as missing
    limits: Limits | None = None  # of a process of its own, for an entry that was sent

    def __getstate__(self) -> dict[str, Any]:
        """Fields without what was found out here: another process finds it out itself."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def name(self) -> str:
        """Describe the task in words."""
        form = "".join(
            f", {name}" for name in dict.fromkeys(run.change for run in self.runs) if name
        )
        return (
            f"{self.card.name}, {self.kind}{form}:"
            f" {', '.join(dict.fromkeys(one.name for one in self.entries))}"
        )

    @property
    def method(self) -> str:
        """Tasks of one method take as long for as much work."""
        return self.entries[0].method

    @property
    def gpu(self) -> bool:
        """Whether a worker with a GPU is to take it."""
        if self.kind == "groups" or self.device != "cpu":
            return self.device != "cpu"
        instance, n = self.built(), self.built().starts([0]).shape[1]
        return (
            self.kind == "solve"
            and instance.movable
            and pays_on_gpu(n, len(self.runs), self.examples_per_step)
        )

    @property
    def card(self) -> BenchmarkProblem:
        return load_problem(self.problem)

    @property
    def change(self) -> Change:
        """Change of the problem: the runs differ in the rate only."""
        return CHANGES[self.runs[0].change]._replace(rate=1.0, slack=1.0)

    def built(self) -> Instance:
        return built_instance(self.problem, self.splits, self.salt, self.change)

    # Lengths --------------------------------------------------------------------------------------

    @cached_property
    def examples_per_step(self) -> float:
        return examples_of_step(self.entries[0], self.built())

    @cached_property
    def steps(self) -> int:
        if self.steps_asked is not None:
            return self.steps_asked
        card, one_batch = self.card, sum(batch_sizes(self.built()))
        budget = card.steps if self.limit is None else min(card.steps, self.limit)
        return max(1, math.floor(budget * one_batch / self.examples_per_step))

    @property
    def work(self) -> int:
        """About how long it takes, in examples that pass through the model."""
        factor = (
            SUBPROBLEM_WORK
            if self.kind != "groups" and _facts(self.entries[0]).several_gradients
            else 1
        )
        a_step = self.examples_per_step + STEP_OVERHEAD_EXAMPLES
        return 0 if self.refusal() else round(factor * self.steps * a_step * len(self.runs))

    def recorded(self) -> list[int]:
        """The steps at which a run is measured, the last one among them; of a held-out run that one
        alone."""
        steps = self.steps
        if self.kind == "heldout":
            return [steps]
        if self.kind == "groups":
            every = -(-steps // self.records)  # rounded up: not more records than asked for
            return [*range(every, steps, every), steps]
        at = np.ceil(np.geomspace(FIRST_RECORD * steps, steps, self.records)).astype(int)
        return sorted({int(min(step, steps)) for step in at})

    def refusal(self) -> str | None:
        """Why the method is not run against targets on the problem, where that is known
        beforehand."""
        m = self.built().problem.m
        if (
            self.kind != "groups"
            and m > MAX_SUBPROBLEM
            and _facts(self.entries[0]).several_gradients
        ):
            return (
                f"a step solves a subproblem in all constraints, and {m:,} are more than"
                f" {MAX_SUBPROBLEM}"
            )
        return None

    # Names ----------------------------------------------------------------------------------------

    @cached_property
    def asked(self) -> list[dict[str, Any]]:
        """What names each run's result; titles and the paper's numbers do not."""
        card, instance, steps = self.card, self.built(), self.steps
        spec = card.spec.deciding() if card.spec is not None else {}
        common = {
            "kind": self.kind,
            "problem": card.name,
            "card": (
                spec
                | (
                    {"file": file_hash(card.file)}
                    if card.file is not None and _is_users(card.file)
                    else {}
                )
            ),
            "data": data_checksum(self.problem, self.splits),
            "source": instance.source,
            "steps": steps,
            "recorded": self.records if self.kind == "groups" else self.recorded(),
        }
        common |= {"measured": list(self.measured)} if self.kind == "groups" else {}
        common |= {"salt": self.salt} if self.salt else {}
        return [
            common
            | self._asked_of(self.entries[run.entry], run.change, instance, card, steps)
            | {
                "change": run.change,
                "seed": run.seed,
                "split": run.split,
            }
            for run in self.runs
        ]

    def _asked_of(
        self, entry: Entry, change: str, instance: Instance, card: BenchmarkProblem, steps: int
    ) -> dict[str, Any]:
        file = entry.method.rpartition(":")[0]
        batch = (
            instance.batch
            if entry.batch is None
            else replace(instance.batch, objective=entry.batch, cell=entry.batch)
        )
        found: dict[str, Any] = {
            "method": entry.described(steps, card.primal, CHANGES[change].rate),
            "batch": [batch.objective, batch.cell],
        }
        if file:  # a method of the user's own is what was asked, as its settings are
            found["method file"] = file_hash(Path(file).expanduser())
        if self.kind == "groups":
            notion, bound, fairret = self.variant(entry)
            found |= {
                "notion": notion,
                "bound": bound,
                "fairret": fairret,
                "pools": list(entry.pools),
            }
        return found

    def variant(self, entry: Entry) -> tuple[str, float, float]:
        spec = self.card.spec
        notion, bound = (
            entry.notion or spec.notion,
            spec.bound if entry.bound is None else entry.bound,
        )
        return notion, bound, entry.fairret

    @cached_property
    def keys(self) -> list[str]:
        """Keys of its results."""
        return [StoredResult(one, {}).key for one in self.asked]

    def missing_in(self, store: Store) -> list[str]:
        return store.missing(self.keys, code_hash() if self.recompute else None)

    # For other processes --------------------------------------------------------------------------

    def user_files(self) -> list[str]:
        """Files of the problem and of the methods, where they are the user's own: a worker
        elsewhere needs them."""
        methods = [entry.method.rpartition(":")[0] for entry in self.entries if ":" in entry.method]
        problem = (
            self.problem
            if isinstance(self.problem, str) and Path(self.problem).suffix in (".toml", ".py")
            else ""
        )
        return [*filter(None, [problem]), *dict.fromkeys(methods)]

    def relocated(self, places: Mapping[str, str]) -> Task:
        """Task with other places of these files."""

        def moved(entry: Entry) -> Entry:
            file, colon, method = entry.method.rpartition(":")
            return (
                replace(entry, method=f"{places[file]}{colon}{method}") if file in places else entry
            )

        problem = (
            places.get(self.problem, self.problem)
            if isinstance(self.problem, str)
            else self.problem
        )
        return replace(self, problem=problem, entries=tuple(map(moved, self.entries)))

    def on(self, device: str) -> Task:
        return replace(self, device=device)

    # Computing ------------------------------------------------------------------------------------

    def batches(self) -> list[Task]:
        """Parts of at most MAX_BATCH_RUNS, of one size if there is a divisor near: another size is
        compiled again."""
        if self.kind != "groups":
            return [self]
        fewest = -(-len(self.runs) // MAX_BATCH_RUNS)
        count = next((n for n in range(fewest, 2 * fewest + 1) if len(self.runs) % n == 0), fewest)
        size = -(-len(self.runs) // count)
        return [
            replace(self, runs=self.runs[at : at + size]) for at in range(0, len(self.runs), size)
        ]

    def complete(self, store: Store, advanced: Callable[[float], None]) -> float:
        """Compute what the store lacks and store it; the seconds. `advanced` receives the share of
        it that is done."""
        if self.limits is not None:
            return complete_limited(replace(self, limits=None), self.limits, store, advanced)
        seconds, batches = 0.0, self.batches()
        for count, batch in enumerate(batches):

            def of_task(share: float, count: int = count) -> None:
                advanced((count + share) / len(batches))

            if batch.missing_in(store):
                seconds += batch._complete(store, of_task)
        return seconds

    def _complete(self, store: Store, advanced: Callable[[float], None]) -> float:
        code = code_hash()
        path = store.checkpoint(hashlib.sha256("\n".join([*self.keys, code]).encode()).hexdigest())
        try:
            if refused := self.refusal():
                raise ValueError(refused)
            with _quiet() if self.kind != "groups" else nullcontext():
                tables, seconds, step_seconds = compute(self, advanced, path)
        # of the method: on a board it stands in the place of a score
        except (ValueError, RuntimeError) as error:
            path.unlink(missing_ok=True)
            if self.kind == "groups":
                raise
            if self.device != "cpu":  # or of the device
                return self.on("cpu")._complete(store, advanced)
            store.put_many(self.failed(str(error)))
            return 0.0
        made = made_by(self.device, seconds, code) | {"step_seconds": step_seconds}
        store.put_many(
            [StoredResult(one, table, made) for one, table in zip(self.asked, tables, strict=True)]
        )
        path.unlink(missing_ok=True)
        return seconds

    def failed(self, sentence: str) -> list[StoredResult]:
        """Results that say why there are no others."""
        made = made_by(self.device, 0.0, code_hash())
        return [
            StoredResult(one, {"failure": {"sentence": np.array([sentence])}}, made)
            for one in self.asked
        ]


def pays_on_gpu(n: int, runs: int, examples: float) -> bool:
    """Whether a step of so many runs is quicker on a GPU than on a CPU's core: see
    GPU_MULTIPLICATIONS."""
    return 2.0 * n * runs * examples >= GPU_MULTIPLICATIONS


@lru_cache(maxsize=128)  # all of a board: some solve a problem when they are built
def built_instance(
    problem: str | TableSpec, splits: int, salt: str = "", change: Change = CHANGES[""]
) -> Instance:
    if change != CHANGES[""]:
        return change.of(built_instance(problem, splits, salt))
    card = load_problem(problem)
    built = card.build() if card.spec is None else card.build(splits)
    return salted(built, salt) if salt else built


@lru_cache(maxsize=256)
def data_checksum(problem: str | TableSpec, splits: int) -> str:
    """Checksum of everything that the runs read; how a table is split and scaled, its card says."""
    built = built_instance(problem, splits)
    data = built.problem.data if built.unscaled is None else built.unscaled
    columns = {
        "X": data.X,
        "y": data.y,
        **{f"group {name}": column for name, column in data.groups.items()},
    }
    return checksum({name: column.cpu().numpy() for name, column in columns.items()})


def _is_users(file: Path) -> bool:
    return not file.is_relative_to(Path(__file__).parent)


def _facts(entry: Entry) -> Any:
    return step_facts(entry.algorithm(USUAL_STEPS))


def examples_of_step(entry: Entry, instance: Instance) -> float:
    """Number of examples that a step of the entry passes through the model."""
    return examples_per_step(entry.algorithm(USUAL_STEPS), *batch_sizes(instance, entry.batch))


def batch_sizes(instance: Instance, batch: int | None = None) -> tuple[int, int]:
    """Examples of a mini-batch for the objective, and for the constraints those of all groups
    together."""
    sizes = (
        instance.batch if batch is None else replace(instance.batch, objective=batch, cell=batch)
    )
    return sizes.objective, len(instance.problem.constraints.cells) * sizes.cell


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of starts and of skipped steps: a board shows what became of every run."""
    log = logging.getLogger("fairbound")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
