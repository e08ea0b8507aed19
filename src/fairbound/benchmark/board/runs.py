"""The runs behind a board: a task is one entry on one problem, all its seeds in one stack."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairbound.auditing.verdicts import verdict
from fairbound.benchmark.board.entries import Entry
from fairbound.benchmark.budget import SHORTER_EPOCHS, examples_per_step, step_facts
from fairbound.benchmark.collection.catalog import Instance, load
from fairbound.benchmark.collection.salted import salted
from fairbound.benchmark.environment import made_by
from fairbound.benchmark.executor import STEP_OVERHEAD_EXAMPLES, Sink, Spent, checkpoint_name
from fairbound.benchmark.fingerprint import checksum, code_hash
from fairbound.benchmark.result_file import StoredResult
from fairbound.constraints.constraint import Constraint
from fairbound.core import Algorithm
from fairbound.training.checkpoint import Checkpoint
from fairbound.training.problem import Problem
from fairbound.training.records import Record
from fairbound.training.runner import run

ROOT = "benchmark/board/runs.py"
RECORDS = 40  # points of a run, evenly spaced in the logarithm of epochs
FIRST_EPOCH = 0.25  # of the first of them
MAX_SUBPROBLEM = (
    50  # constraints that a method with a subproblem is given: with 90 a step takes 50 ms, with 200 most of a second
)
# Of a step of all runs, from which an H200 is at least twice as quick as a CPU's core (benchmarks/gpu_board.py --rule):
# launching a step takes it 6.6 ms at any size; a core takes 7.3 ms for 3.5e7, 19 for 1.4e8 and 97 for 7e8.
GPU_MULTIPLICATIONS = 1e8
SUBPROBLEM_WORK = 5  # about how much longer a step with a subproblem takes

Kind = Literal["solve", "robust", "heldout", "tuning"]


@dataclass(frozen=True)
class BoardTask:
    """Runs of an entry on a problem, in texts and numbers, so that another process can compute them."""

    problem: str  # a name or a file
    entries: tuple[Entry, ...]  # the same method at one or more settings (tuning)
    kind: Kind
    seeds: tuple[int, ...]
    instance: int = 0
    splits: int = 1
    epochs: float | None = None  # a shorter budget than the problem's
    device: str = "cpu"  # that computes it; no part of the results' names, as the model of a CPU is none
    salt: str = ""  # other coordinates of the variables, for a check: `collection.salted`

    @property
    def name(self) -> str:
        """In words."""
        form = f", instance {self.instance}" if self.instance else ""
        return f"{load(self.problem).name}, {self.kind}{form}: {self.entries[0].name}"

    @property
    def method(self) -> str:
        return self.entries[0].name

    @property
    def gpu(self) -> bool:
        instance, n = self.instance_of(), self.instance_of().starts([0]).shape[1]
        return self.kind == "solve" and instance.movable and pays_on_gpu(n, len(self.runs), self.examples_per_step())

    @property
    def runs(self) -> list[tuple[Entry, int]]:
        return [(entry, seed) for entry in self.entries for seed in self.seeds]

    @property
    def budget(self) -> float:
        """Epochs."""
        own = load(self.problem).epochs
        own = min(own, SHORTER_EPOCHS) if self.kind in ("heldout", "robust") else own
        return own if self.epochs is None else min(own, self.epochs)

    def instance_of(self) -> Instance:
        return _instance(self.problem, self.instance, self.splits, self.salt)

    def examples_per_step(self) -> float:
        return _examples_per_step(self.entries[0].algorithm(1000), self.instance_of())

    @property
    def steps(self) -> int:
        return max(1, math.floor(self.budget * self.instance_of().examples / self.examples_per_step()))

    @property
    def work(self) -> int:
        method = self.entries[0].algorithm(1000)
        factor = SUBPROBLEM_WORK if step_facts(method).several_gradients else 1
        a_step = self.examples_per_step() + STEP_OVERHEAD_EXAMPLES
        return 0 if self.refusal() else round(factor * self.steps * a_step * len(self.runs))

    def recorded(self) -> list[int]:
        """The steps at which a run is measured; of a held-out run the last one alone."""
        if self.kind == "heldout":
            return [self.steps]
        epochs = np.geomspace(FIRST_EPOCH, self.budget, RECORDS)
        steps = np.ceil(epochs * self.instance_of().examples / self.examples_per_step()).astype(int)
        return sorted({int(min(max(step, 1), self.steps)) for step in steps} | {self.steps})

    def refusal(self) -> str | None:
        """Why the method cannot be run on the problem, where that is known beforehand."""
        m, method = self.instance_of().problem.m, self.entries[0].algorithm(1000)
        if m > MAX_SUBPROBLEM and step_facts(method).several_gradients:
            return f"a step solves a subproblem in all constraints, and {m:,} are more than {MAX_SUBPROBLEM}"
        return None

    # Results ----------------------------------------------------------------------------------------------------------

    def settings(self) -> list[dict[str, Any]]:
        """What decides each run's result."""
        problem, instance, steps = load(self.problem), self.instance_of(), self.steps
        python = problem.file is None or problem.file.suffix == ".py"
        files = (problem.file,) if problem.file is not None and python else ()
        common = {
            "board": self.kind,
            "problem": problem.name,
            "card": "" if python or problem.file is None else hashlib.sha256(problem.file.read_bytes()).hexdigest(),
            "code": _code(self.entries[0].algorithm_type, files),
            "data": data_checksum(self.problem, self.instance, self.splits),
            "source": instance.source,
            "instance": self.instance,
            "steps": steps,
            "recorded": self.recorded(),
            "batch": [instance.batch.objective, instance.batch.cell],
        } | ({"salt": self.salt} if self.salt else {})
        return [
            common | {"algorithm": entry.described(steps), "seed": seed, "split": i % self.splits}
            for i, (entry, seed) in enumerate(self.runs)
        ]

    def result_keys(self) -> list[str]:
        return [StoredResult(one, {}).key for one in self.settings()]

    def keys_here(self) -> list[str]:
        return self.result_keys()

    def user_files(self) -> list[str]:
        """Of the problem and of the methods, where they are the user's own."""
        methods = [entry.method.rpartition(":")[0] for entry in self.entries if ":" in entry.method]
        return [*([self.problem] if Path(self.problem).suffix in (".toml", ".py") else []), *dict.fromkeys(methods)]

    def relocated(self, places: Mapping[str, str]) -> BoardTask:
        def moved(entry: Entry) -> Entry:
            file, colon, method = entry.method.rpartition(":")
            return replace(entry, method=f"{places[file]}{colon}{method}") if file in places else entry

        entries = tuple(map(moved, self.entries))
        return replace(self, problem=places.get(self.problem, self.problem), entries=entries)

    def on(self, device: str) -> BoardTask:
        return replace(self, device=device)

    def complete(self, store: Sink, advanced: Callable[[float], None]) -> Spent:
        start = perf_counter()
        path = store.checkpoint(checkpoint_name(self.result_keys()))
        try:
            refused = self.refusal()
            if refused:
                raise ValueError(refused)
            with _quiet():
                tables = self._measured(advanced, path)
        except (ValueError, RuntimeError) as error:  # of the method: it stands on the board in the place of a score
            path.unlink(missing_ok=True)
            if self.device != "cpu":  # or of the device
                return self.on("cpu").complete(store, advanced)
            store.put_many(self.failed(str(error)))
        else:
            made = made_by(self.device, perf_counter() - start)
            settings = self.settings()
            store.put_many([StoredResult(one, table, made) for one, table in zip(settings, tables, strict=True)])
            path.unlink(missing_ok=True)
        return Spent(stepping=perf_counter() - start)

    def failed(self, sentence: str) -> list[StoredResult]:
        """Results that say why there are no others."""
        return [StoredResult(one, {"failure": {"sentence": np.array([sentence])}}) for one in self.settings()]

    def _measured(self, advanced: Callable[[float], None], path: Path) -> list[dict[str, Any]]:
        instance, steps = self.instance_of(), self.steps
        instance = instance if self.device == "cpu" else instance.to(self.device)
        methods = [entry.algorithm(steps) for entry, _ in self.runs]
        primals = [entry.primal_step for entry, _ in self.runs]
        samplers = [instance.sampler(i, seed) for i, (_, seed) in enumerate(self.runs)]
        starts = instance.starts([seed for _, seed in self.runs])
        recorder = _Recorder(instance, starts)
        going = run(
            instance.problem, methods, samplers, starts, steps, every=self.recorded(), compile=False, primal=primals,
            checkpoint=Checkpoint(path, recorder.kept, recorder.restore),
        )  # fmt: skip
        computation = iter(going)
        while True:
            before = process_time()
            record = next(computation, None)
            recorder.stepping += process_time() - before
            if record is None:
                break
            recorder.add(record)
            advanced(record.step / steps)
        result = going.result()
        per_step = self.examples_per_step() / instance.examples
        tables = recorder.tables(per_step, result.multipliers.cpu(), recorder.stepping / steps / len(methods))
        for i, table in enumerate(tables):
            if self.kind == "heldout":
                table["heldout"] = _held_out(instance, i, result.output[i])
            if instance.elsewhere and self.kind == "solve":
                table["shift"] = _elsewhere(self.instance_of(), result.output[i : i + 1].cpu())
        return tables


def pays_on_gpu(n: int, runs: int, examples: float) -> bool:
    """Whether a step of so many runs is quicker on a GPU than on a CPU's core: see GPU_MULTIPLICATIONS."""
    return 2.0 * n * runs * examples >= GPU_MULTIPLICATIONS


@cache
def _code(method: type[Algorithm[Any]], files: tuple[Path, ...]) -> str:
    return code_hash(method, ROOT, *files)


@lru_cache(maxsize=128)  # all of a board: some solve a problem when they are built
def _instance(problem: str, instance: int, splits: int, salt: str = "") -> Instance:
    built = load(problem).build(instance, splits)
    return salted(built, salt) if salt else built


@lru_cache(maxsize=256)
def data_checksum(problem: str, instance: int, splits: int) -> str:
    data = _instance(problem, instance, splits).problem.data
    columns = {"X": data.X, "y": data.y, **{f"group {name}": column for name, column in data.groups.items()}}
    return checksum({name: column.cpu().numpy() for name, column in columns.items()})


def _examples_per_step(method: Algorithm[Any], instance: Instance) -> float:
    cells = 1 if instance.problem.pooled else len(instance.problem.constraints.cells)
    return examples_per_step(method, instance.batch.objective, cells * instance.batch.cell)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of starts and of skipped steps: a board shows what became of every run."""
    log = logging.getLogger("fairbound")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


# Measuring ------------------------------------------------------------------------------------------------------------


class _Recorder:
    """Losses and violations of runs over all training examples, in units of the constraints as stated."""

    def __init__(self, instance: Instance, starts: Tensor) -> None:
        self.instance, self.starts = instance, starts
        self.rows: list[list[dict[str, float]]] = [[] for _ in starts]
        self.stepping = 0.0  # CPU seconds of all steps

    def kept(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"rows": self.rows, "stepping": self.stepping}

    def restore(self, kept: dict[str, Any]) -> None:
        self.rows, self.stepping = kept["rows"], kept["stepping"]

    def add(self, record: Record) -> None:
        instance = self.instance
        for split in range(len(instance.splits)):
            own = [i for i, run in enumerate(record.runs) if run % len(instance.splits) == split]
            x = record.output[own]
            found = instance.problem.evaluate(x, instance.splits[split].train)
            positive = instance.violations(found.c) / instance.scale
            columns = {"loss": found.loss, "violation": positive.amax(-1), "mean_violation": positive.mean(-1)}
            if instance.solution is not None:
                exact = instance.solution.x
                columns["distance"] = (x - exact).norm(dim=-1) / (self.starts[0] - exact).norm()
            for i, values in zip(own, zip(*(column.tolist() for column in columns.values()), strict=True), strict=True):
                row = dict(zip(columns, values, strict=True))
                self.rows[record.runs[i]].append({"step": record.step, **row})

    def tables(self, epochs_per_step: float, multipliers: Tensor, step_seconds: float) -> list[dict[str, Any]]:
        made = []
        for i, rows in enumerate(self.rows):
            records: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
            records["epochs"] = epochs_per_step * records["step"]
            end = {
                "multiplier_distance": np.array([self._multiplier_distance(multipliers[i])]),
                "step_seconds": np.array([step_seconds]),
            }
            made.append({"records": records, "end": end})
        return made

    def _multiplier_distance(self, y: Tensor) -> float:
        solution = self.instance.solution
        if solution is None or solution.y is None:
            return math.nan
        return float((y - solution.y).norm() / max(1.0, float(solution.y.norm())))


def _held_out(instance: Instance, run: int, x: Tensor) -> dict[str, Any]:
    """Of the end of a run: loss, violation, accuracy and verdict on the held-out examples of its split."""
    test, problem = instance.splits[run % len(instance.splits)].test, instance.problem
    loss, violation = _at(problem, instance, x, test)
    with torch.no_grad():
        outputs, labels = problem.forward(x, problem.data.X[test]), problem.data.y[test]
        losses = problem.loss(outputs, labels)
    (constraint,) = problem.constraints.parts
    decision = "undecided"
    if isinstance(constraint, Constraint) and bool(torch.isfinite(losses).all()):
        groups = next(iter(problem.data.groups.values()))[test]
        unbound = replace(constraint, cells=replace(constraint.cells, members=None))
        decision = verdict(unbound, groups, losses=losses, outputs=outputs, labels=labels).decision
    right = ((outputs > 0) == (labels > 0.5)).double().mean()
    return {
        "loss": np.array([loss]),
        "violation": np.array([violation]),
        "accuracy": np.array([float(right)]),
        "decision": np.array([decision]),
    }


def _elsewhere(instance: Instance, x: Tensor) -> dict[str, Any]:
    found = [_at(problem, instance, x[0], None) for problem in instance.elsewhere.values()]
    return {
        "population": np.array(list(instance.elsewhere)),
        "loss": np.array([loss for loss, _ in found]),
        "violation": np.array([violation for _, violation in found]),
    }


def _at(problem: Problem, instance: Instance, x: Tensor, examples: Tensor | None) -> tuple[float, float]:
    found = problem.evaluate(x, torch.arange(problem.data.rows) if examples is None else examples)
    return float(found.loss[0]), float((instance.violations(found.c) / instance.scale).amax())
