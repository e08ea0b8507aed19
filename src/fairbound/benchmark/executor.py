"""An experiment is carried out: the cells that a store lacks are computed, stack by stack.

A cell is (row, budget, seed, split). Rows of one method that train on the same problem, with batches of the same size
and for as many steps, form stacks with their seeds and splits: every stack is one compiled step. A stack is computed as
a whole whenever one of its cells is missing: what shares a stack changes rounding, and a resumed benchmark must end
with the same results as one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple

from fairbound.algorithms.schedules import InverseSqrt, Power
from fairbound.benchmark.config import Row
from fairbound.benchmark.experiment import Setting
from fairbound.benchmark.fingerprint import code_hash
from fairbound.benchmark.recorder import Recorder
from fairbound.benchmark.result_file import Cell
from fairbound.benchmark.store import Store
from fairbound.core import Algorithm
from fairbound.training.functional import initial_points
from fairbound.training.hyperparams import structure
from fairbound.training.runner import run

Budget = Literal["paper", "rows"]
TrainingState = Callable[[int, int], None]  # work done and work in all, as `Stack.work` counts it
MOST = 48  # runs of a stack: more are no faster a run, and divide badly among processes
OFTEN = 5_000_000  # rows of a stack, over its runs and records, from which compiling their evaluation pays: .03 us each
OVERHEAD = 30  # what a step costs beside the rows that pass through the model, in such rows


@dataclass(frozen=True)
class Plan:
    """One run: a row with its length, on one split, from one seed."""

    row: Row
    steps: int
    seed: int
    split: int


@dataclass(frozen=True)
class Stack:
    """Runs that go together."""

    plans: tuple[Plan, ...]
    algorithms: tuple[Algorithm[Any], ...]
    keys: tuple[str, ...]
    settings: tuple[Mapping[str, Any], ...]
    form: Hashable  # what stacks of equal form and size share: the compiled step

    @property
    def steps(self) -> int:
        return self.plans[0].steps

    def work(self, groups: int) -> int:
        """About how long it takes, in rows that pass through the model."""
        return sum(int(plan.row.rows_per_step(groups) + OVERHEAD) for plan in self.plans) * self.steps


def stacks(
    setting: Setting,
    *,
    budget: Budget = "paper",
    seeds: int | None = None,
    steps: int | None = None,
    own: Sequence[Path] = (),
) -> list[Stack]:
    """All runs of the experiment, in the stacks in which they are computed.

    `steps` caps the length of every run; `own` are the files of the user's that hold methods of the experiment.
    """
    experiment, codes = setting.experiment, {False: code_hash(), True: code_hash(*own)}
    alike: dict[Hashable, list[Plan]] = {}
    for row in experiment.rows:
        length = row.steps if budget == "paper" else experiment.equal_rows_steps(row)
        length = length if steps is None else min(length, steps)
        form: Hashable = (row.own or row.method, row.notion, row.bound, row.fairret, row.batch, row.pools, length)
        for split in range(len(setting.splits)):
            for seed in range(experiment.seeds if seeds is None else seeds):
                alike.setdefault(form, []).append(Plan(row, length, seed, split))
    made = []
    for problem_and_length, plans in alike.items():
        by_structure: dict[Hashable, list[tuple[Plan, Algorithm[Any]]]] = {}
        for plan, algorithm in zip(plans, aligned([plan.row.algorithm(plan.steps) for plan in plans]), strict=True):
            by_structure.setdefault((problem_and_length, structure(algorithm)), []).append((plan, algorithm))
        for both, members in by_structure.items():
            made += [_stack(setting, part, both, codes[members[0][0].row.own is not None]) for part in _parts(members)]
    return made


def aligned(algorithms: Sequence[Algorithm[Any]]) -> list[Algorithm[Any]]:
    """The same, where one has a constant and another one over a power of the step in one form: one structure.

    >>> from fairbound.algorithms import SGD
    >>> aligned([SGD(tau=0.1), SGD(tau=InverseSqrt(0.2))])
    [SGD(tau=Power(start=0.1, power=0.0)), SGD(tau=Power(start=0.2, power=0.5))]
    """
    changed = [dict[str, Power]() for _ in algorithms]
    for field in fields(algorithms[0]):  # type: ignore[arg-type]
        settings = [getattr(algorithm, field.name) for algorithm in algorithms]
        powers = {i: setting for i, setting in enumerate(settings) if type(setting) in (float, InverseSqrt, Power)}
        if len({type(setting) for setting in powers.values()}) > 1:
            for i, setting in powers.items():
                changed[i][field.name] = _as_power(setting)
    return [replace(one, **new) for one, new in zip(algorithms, changed, strict=True)]  # type: ignore[type-var]


def _as_power(setting: float | InverseSqrt | Power) -> Power:
    if isinstance(setting, Power):
        return setting
    return Power(setting.start, 0.5) if isinstance(setting, InverseSqrt) else Power(setting, 0.0)


def _parts(members: Sequence[Any]) -> list[Sequence[Any]]:
    """Parts of at most MOST, of one size if there is a divisor near: another size is another compilation."""
    fewest = -(-len(members) // MOST)
    count = next((n for n in range(fewest, 2 * fewest + 1) if len(members) % n == 0), fewest)
    size = -(-len(members) // count)
    return [members[at : at + size] for at in range(0, len(members), size)]


def _stack(setting: Setting, members: Sequence[tuple[Plan, Algorithm[Any]]], form: Hashable, code: str) -> Stack:
    plans, algorithms = zip(*members, strict=True)
    settings = tuple(_settings(setting, plan, code) for plan in plans)
    return Stack(plans, algorithms, tuple(Cell(one, {}).key for one in settings), settings, (form, len(plans)))


def _settings(setting: Setting, plan: Plan, code: str) -> dict[str, Any]:
    """What decides a cell's results; names and the paper's numbers do not."""
    experiment, row = setting.experiment, plan.row
    return {
        "code": code,
        "data": setting.data_checksum,
        "source": setting.source,
        "groups": list(experiment.groups),
        "hidden": list(experiment.hidden),
        "records": experiment.records,
        "split": {**asdict(experiment.split), "number": plan.split},
        "parts": list(setting.parts()),
        "measured": list(setting.measured()),
        "device": setting.device,
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


def execute(setting: Setting, store: Store, planned: Sequence[Stack], progress: TrainingState | None = None) -> int:
    """Compute what is missing, in this process; how many cells were."""
    waiting = [stack for stack in planned if store.missing(stack.keys)]
    groups = len(setting.experiment.groups)
    total = sum(stack.work(groups) for stack in waiting)
    before = 0
    for stack in waiting:

        def advanced(share: float, before: int = before, work: int = stack.work(groups)) -> None:
            if progress is not None:
                progress(before + round(share * work), total)

        completed(setting, stack, store, advanced)
        before += stack.work(groups)
    return sum(len(stack.plans) for stack in waiting)


class Spent(NamedTuple):
    """Seconds of computing."""

    compiling: float = 0.0
    stepping: float = 0.0
    evaluating: float = 0.0
    storing: float = 0.0

    def plus(self, other: Spent) -> Spent:
        return Spent(*(a + b for a, b in zip(self, other, strict=True)))


def completed(setting: Setting, stack: Stack, store: Store, advanced: Callable[[float], None]) -> Spent:
    """Compute a stack and store its cells; what it took."""
    cells, spent = computed(setting, stack, advanced)
    start = perf_counter()
    store.put_many(cells)
    return spent._replace(storing=perf_counter() - start)


def computed(setting: Setting, stack: Stack, advanced: Callable[[float], None]) -> tuple[list[Cell], Spent]:
    """The cells of a stack, and what they took; `advanced` is told which share of it is done."""
    start, evaluating = perf_counter(), 0.0
    every = -(-stack.steps // setting.experiment.records)  # rounded up: not more records than asked for
    problem = setting.problem(stack.plans[0].row)
    samplers = [
        setting.sampler(plan.row, problem, method.draws, plan.split, plan.seed)
        for plan, method in zip(stack.plans, stack.algorithms, strict=True)
    ]
    starts = initial_points(setting.network, [plan.seed for plan in stack.plans]).to(setting.device)
    computation = run(problem, stack.algorithms, samplers, starts, stack.steps, every=every)
    rows = sum(len(setting.splits[0].pool(part)) for part in setting.measured())
    often = computation.compiled and rows * len(stack.plans) * setting.experiment.records >= OFTEN
    recorder = Recorder(setting, [plan.split for plan in stack.plans], compiled=often)
    for record in computation:
        before = perf_counter()
        recorder.add(record.step, record.runs, record.x)
        evaluating += perf_counter() - before
        advanced(record.step / stack.steps)
    result = computation.result()
    before = perf_counter()
    tables = recorder.tables(result.x, result.multipliers, result.skipped)
    evaluating += perf_counter() - before
    whole, compiling = perf_counter() - start, computation.compiling
    cells = [Cell(settings, table) for settings, table in zip(stack.settings, tables, strict=True)]
    return cells, Spent(compiling, whole - compiling - evaluating, evaluating)
