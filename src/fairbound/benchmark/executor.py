"""A job is planned and computed: the runs that a store lacks, batch by batch.

A job is one experiment on one source of data within one budget; its runs are (row, seed, split). Runs of one method
that train on the same problem, with mini-batches of the same size and for as many steps, form batches: every batch is
one compiled step over all its runs. A batch is computed as a whole whenever one of its results is missing: what shares
a batch changes rounding, and a resumed benchmark must end with the same results as one that was never interrupted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol

from fairbound.benchmark import config
from fairbound.benchmark.config import Row
from fairbound.benchmark.custom_algorithm import add_custom_algorithm, load_custom_algorithm
from fairbound.benchmark.environment import made_by
from fairbound.benchmark.evaluation import Recorder
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.fingerprint import code_hash
from fairbound.benchmark.result_file import StoredResult
from fairbound.benchmark.store import Store
from fairbound.core import Algorithm
from fairbound.data.sources import best, load
from fairbound.data.table import Table, is_census
from fairbound.training.checkpoint import Checkpoint
from fairbound.training.functional import initial_points
from fairbound.training.hyperparams import structure
from fairbound.training.runner import run

Budget = Literal["paper", "examples"]
Progress = Callable[[int, int], None]  # work done and work in all, as `RunBatch.work` counts it
MAX_BATCH_RUNS = 48  # more are no faster a run, and divide badly among processes
COMPILED_EVALUATION_EXAMPLES = 5_000_000  # of a batch, over runs and records: compiling saves .03 us of each
STEP_OVERHEAD_EXAMPLES = 30  # what a step costs beside its examples, as so many of them


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be run, in texts and numbers, so that another process can plan it again."""

    experiment: str  # a name or a TOML file
    budget: Budget = "paper"
    folder: Path | None = None  # with census data
    source: str | None = None  # other data than the experiment's
    label: str | None = None  # of a table of the user's own: the column to predict
    group: str | None = None  # the protected attribute, in the place of the experiment's
    seeds: int | None = None
    splits: int | None = None
    steps: int | None = None  # no run is longer
    algorithm: str | None = None  # a method of the user's own, my_file.py:MyMethod
    device: str = "cpu"


@dataclass(frozen=True)
class RunPlan:
    """One run: a row with its length, on one split, from one seed."""

    row: Row
    steps: int
    seed: int
    split: int


@dataclass(frozen=True)
class RunBatch:
    """Runs that are computed together."""

    plans: tuple[RunPlan, ...]
    algorithms: tuple[Algorithm[Any], ...]
    keys: tuple[str, ...]
    settings: tuple[Mapping[str, Any], ...]
    compile_key: Hashable  # batches with equal ones share the compiled step

    @property
    def steps(self) -> int:
        return self.plans[0].steps

    def work(self, groups: int) -> int:
        """About how long it takes, in examples that pass through the model."""
        a_step = sum(int(plan.row.examples_per_step(groups) + STEP_OVERHEAD_EXAMPLES) for plan in self.plans)
        return a_step * self.steps


@dataclass(frozen=True, eq=False)
class PlannedJob:
    """An experiment with its data, and its runs."""

    prepared: PreparedExperiment
    batches: list[RunBatch]


# Planning -------------------------------------------------------------------------------------------------------------


def prepare(job: Job) -> PreparedExperiment:
    """The job's experiment with its data."""
    experiment = config.load(job.experiment)
    if job.algorithm is not None:
        experiment = add_custom_algorithm(experiment, load_custom_algorithm(job.algorithm))
    if job.group is not None:
        experiment = replace(experiment, group=job.group, groups=())
    source = job.source or experiment.source or best(str(experiment.state), job.folder)
    label = job.label or (None if is_census(source) else experiment.label)
    table = _table(source, label, experiment.positive, job.folder)
    return PreparedExperiment.of(experiment.within(job.budget), table, job.splits, job.device)


def plan(job: Job) -> PlannedJob:
    """The job's data and batches of runs; nothing is computed yet."""
    prepared = prepare(job)
    return PlannedJob(prepared, run_batches(prepared, budget=job.budget, seeds=job.seeds, steps=job.steps))


@cache
def _table(source: str, label: str | None, positive: Any, folder: Path | None) -> Table:
    """Several experiments read the same data. Rows of a user's table with missing values are skipped, and named."""
    table = load(source, label=label, positive=positive, folder=folder)
    return table if table.census else table.complete()


def run_batches(
    prepared: PreparedExperiment, *, budget: Budget = "paper", seeds: int | None = None, steps: int | None = None
) -> list[RunBatch]:
    """All runs of the experiment, in the batches in which they are computed; `steps` caps the length of every run."""
    experiment = prepared.experiment
    alike: dict[Hashable, list[tuple[RunPlan, Algorithm[Any]]]] = {}
    for row in experiment.rows:
        length = row.steps if budget == "paper" else experiment.equal_examples_steps(row)
        length = length if steps is None else min(length, steps)
        algorithm = row.algorithm(length)
        key = (structure(algorithm), row.notion, row.bound, row.fairret, row.batch, row.pools, length)
        for split in range(len(prepared.splits)):
            for seed in range(experiment.seeds if seeds is None else seeds):
                alike.setdefault(key, []).append((RunPlan(row, length, seed, split), algorithm))
    return [_batch(prepared, part, key) for key, members in alike.items() for part in _parts(members)]


def _parts(members: Sequence[Any]) -> list[Sequence[Any]]:
    """Parts of at most MAX_BATCH_RUNS, of one size if there is a divisor near: another size is another compilation."""
    fewest = -(-len(members) // MAX_BATCH_RUNS)
    count = next((n for n in range(fewest, 2 * fewest + 1) if len(members) % n == 0), fewest)
    size = -(-len(members) // count)
    return [members[at : at + size] for at in range(0, len(members), size)]


def _batch(
    prepared: PreparedExperiment, members: Sequence[tuple[RunPlan, Algorithm[Any]]], compile_key: Hashable
) -> RunBatch:
    plans, algorithms = zip(*members, strict=True)
    code = code_hash(type(algorithms[0]))
    settings = tuple(_settings(prepared, plan, code) for plan in plans)
    keys = tuple(StoredResult(one, {}).key for one in settings)
    return RunBatch(plans, algorithms, keys, settings, (compile_key, len(plans)))


def _settings(prepared: PreparedExperiment, plan: RunPlan, code: str) -> dict[str, Any]:
    """What decides a run's result; titles and the paper's numbers do not."""
    experiment, row = prepared.experiment, plan.row
    return {
        "code": code,
        "data": prepared.data_checksum,
        "source": prepared.source,
        "groups": list(experiment.groups),
        "hidden": list(experiment.hidden),
        "records": experiment.records,
        "split": {**asdict(experiment.split), "number": plan.split},
        "parts": list(prepared.parts()),
        "measured": list(prepared.measured()),
        "device": prepared.device,
        "experiment": experiment.name,
        "row": row.name,
        "algorithm": repr(row.algorithm(plan.steps)),
        "batch": row.batch,
        "pools": list(row.pools),
        "notion": row.notion,
        "bound": row.bound,
        "fairret": row.fairret,
        "steps": plan.steps,
        "seed": plan.seed,
    }


# Computing ------------------------------------------------------------------------------------------------------------


class Sink(Protocol):
    """Where results go: a `Store`, or what a worker without its folder sends back."""

    def missing(self, keys: Sequence[str]) -> list[str]: ...

    def put_many(self, results: Sequence[StoredResult]) -> list[str]: ...

    def checkpoint(self, key: str) -> Path: ...


class Spent(NamedTuple):
    """Seconds of computing."""

    compiling: float = 0.0
    stepping: float = 0.0
    evaluating: float = 0.0
    storing: float = 0.0

    def plus(self, other: Spent) -> Spent:
        return Spent(*(a + b for a, b in zip(self, other, strict=True)))


def execute(
    prepared: PreparedExperiment, store: Store, batches: Sequence[RunBatch], progress: Progress | None = None
) -> int:
    """Compute what is missing, in this process; how many runs were."""
    waiting = [batch for batch in batches if store.missing(batch.keys)]
    groups = len(prepared.experiment.groups)
    total = sum(batch.work(groups) for batch in waiting)
    before = 0
    for batch in waiting:

        def advanced(share: float, before: int = before, work: int = batch.work(groups)) -> None:
            if progress is not None:
                progress(before + round(share * work), total)

        compute_and_store(prepared, batch, store, advanced)
        before += batch.work(groups)
    return sum(len(batch.plans) for batch in waiting)


def compute_and_store(
    prepared: PreparedExperiment, batch: RunBatch, store: Sink, advanced: Callable[[float], None]
) -> Spent:
    """Compute a batch and store its results; what it took."""
    path = store.checkpoint(checkpoint_name(batch.keys))
    results, spent = compute(prepared, batch, advanced, path)
    made = made_by(prepared.device, sum(spent))
    start = perf_counter()
    store.put_many([replace(result, made=made) for result in results])
    path.unlink(missing_ok=True)
    return spent._replace(storing=perf_counter() - start)


def checkpoint_name(keys: Sequence[str]) -> str:
    """Of runs that are computed together: all of them decide it."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()


def compute(
    prepared: PreparedExperiment, batch: RunBatch, advanced: Callable[[float], None], path: Path
) -> tuple[list[StoredResult], Spent]:
    """The results of a batch, and what they took; `advanced` receives the share of it that is done.

    A long one is kept in the file `path` now and then, and goes on from it.
    """
    start, evaluating = perf_counter(), 0.0
    every = -(-batch.steps // prepared.experiment.records)  # rounded up: not more records than asked for
    problem = prepared.problem(batch.plans[0].row)
    samplers = [
        prepared.sampler(plan.row, problem, method.draws, plan.split, plan.seed)
        for plan, method in zip(batch.plans, batch.algorithms, strict=True)
    ]
    feasible = "zero-last-layer" if getattr(batch.algorithms[0], "needs_feasible_start", False) else None
    starts = initial_points(prepared.network, [plan.seed for plan in batch.plans], feasible=feasible)
    starts = starts.to(prepared.device)
    splits = [plan.split for plan in batch.plans]
    recorder = Recorder({}, splits)
    checkpoint = Checkpoint(path, lambda: recorder.records, recorder.restore)
    computation = run(
        problem, batch.algorithms, samplers, starts, batch.steps, every=every, checkpoint=checkpoint
    )  # fmt: skip
    examples = sum(len(prepared.splits[0].pool(part)) for part in prepared.measured())
    examples *= len(batch.plans) * prepared.experiment.records
    compiled = computation.compiled and examples >= COMPILED_EVALUATION_EXAMPLES
    recorder.evaluators = {s: prepared.evaluator(s, prepared.measured(), compiled) for s in dict.fromkeys(splits)}
    for record in computation:
        before = perf_counter()
        recorder.add(record.step, record.runs, record.x)
        evaluating += perf_counter() - before
        advanced(record.step / batch.steps)
    result = computation.result()
    before = perf_counter()
    tables = recorder.tables(result.x, result.multipliers, result.skipped)
    evaluating += perf_counter() - before
    whole, compiling = perf_counter() - start, computation.compiling
    results = [StoredResult(settings, table) for settings, table in zip(batch.settings, tables, strict=True)]
    return results, Spent(compiling, whole - compiling - evaluating, evaluating)
