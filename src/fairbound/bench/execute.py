"""An experiment is carried out: the cells that a store lacks are computed, stack by stack.

A cell is (row, budget, seed, split); rows of one method that train on the same problem for as many steps form a stack
with all their seeds and splits. A stack is computed as a whole whenever one of its cells is missing: what shares a
stack changes rounding, and a resumed benchmark must end with the same results as one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.bench.cell_file import Cell
from fairbound.bench.identity import code_hash
from fairbound.bench.setting import Setting
from fairbound.bench.spec import Row
from fairbound.bench.store import Store
from fairbound.fairness.counts import Counts
from fairbound.fairness.scores import Scores, w1, wd
from fairbound.modules import initial_points
from fairbound.runner import run

Budget = Literal["paper", "rows"]
BINS = 50  # of the score histograms
Columns = dict[str, NDArray[Any]]
Progress = Callable[[int, int], None]  # steps done and steps in all, of all runs together


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
    keys: tuple[str, ...]
    settings: tuple[Mapping[str, Any], ...]

    @property
    def steps(self) -> int:
        return self.plans[0].steps


def stacks(
    setting: Setting, *, budget: Budget = "paper", seeds: int | None = None, steps: int | None = None
) -> list[Stack]:
    """All runs of the experiment, in the stacks in which they are computed. `steps` caps the length of every run."""
    experiment, code = setting.experiment, code_hash()
    groups: dict[tuple[Any, ...], list[Plan]] = {}
    for row in experiment.rows:
        length = row.steps if budget == "paper" else experiment.equal_rows_steps(row)
        length = length if steps is None else min(length, steps)
        for split in range(len(setting.splits)):
            for seed in range(experiment.seeds if seeds is None else seeds):
                plan = Plan(row, length, seed, split)
                groups.setdefault((row.method, row.notion, row.bound, row.fairret, length), []).append(plan)
    made = []
    for plans in groups.values():
        settings = tuple(_settings(setting, plan, code) for plan in plans)
        made.append(Stack(tuple(plans), tuple(Cell(one, {}).key for one in settings), settings))
    return made


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


def execute(setting: Setting, store: Store, planned: Sequence[Stack], progress: Progress | None = None) -> int:
    """Compute what is missing; how many cells were."""
    waiting = [stack for stack in planned if store.missing(stack.keys)]
    total = sum(stack.steps * len(stack.plans) for stack in waiting)
    before = 0
    for stack in waiting:

        def advanced(steps: int, before: int = before) -> None:
            if progress is not None:
                progress(before + steps, total)

        store.put_many(_computed(setting, stack, advanced))
        before += stack.steps * len(stack.plans)
    return sum(len(stack.plans) for stack in waiting)


def _computed(setting: Setting, stack: Stack, advanced: Callable[[int], None]) -> list[Cell]:
    """The cells of a stack."""
    every = -(-stack.steps // setting.experiment.records)  # rounded up: not more records than asked for
    rows = [plan.row for plan in stack.plans]
    problem = setting.problem(rows[0])
    algorithms = [row.algorithm(stack.steps) for row in rows]
    samplers = [
        setting.sampler(plan.row, problem, method.draws, plan.split, plan.seed)
        for plan, method in zip(stack.plans, algorithms, strict=True)
    ]
    starts = initial_points(setting.network, [plan.seed for plan in stack.plans])
    recorder = Recorder(setting, [plan.split for plan in stack.plans])
    computation = run(problem, algorithms, samplers, starts, stack.steps, every=every)
    finished = 0
    for record in computation:
        recorder.add(record.step, record.runs, record.x)
        if record.step == stack.steps:
            finished += len(record.runs)
        advanced(finished * stack.steps + (0 if record.step == stack.steps else record.step * len(record.runs)))
    result = computation.result()
    tables = recorder.tables(result.x, result.multipliers, result.skipped)
    return [Cell(settings, table) for settings, table in zip(stack.settings, tables, strict=True)]


class Recorder:
    """The only place that measures: losses by group at every record, everything about scores at the end."""

    def __init__(self, setting: Setting, splits: Sequence[int]) -> None:
        self.setting, self.splits = setting, list(splits)
        self.parts = setting.parts()
        self.evaluators = {split: setting.evaluator(split, self.parts) for split in dict.fromkeys(self.splits)}
        self.records: list[list[tuple[int, Tensor]]] = [[] for _ in self.splits]  # for each run (step, losses)

    def add(self, step: int, runs: Sequence[int], x: Tensor) -> None:
        """The state of some runs after a step."""
        for split, evaluator in self.evaluators.items():
            own = [place for place, run in enumerate(runs) if self.splits[run] == split]
            if own:
                for place, losses in zip(own, evaluator.losses(x[own]), strict=True):
                    self.records[runs[place]].append((step, losses))

    def tables(self, x: Tensor, multipliers: Tensor, skipped: Tensor) -> list[dict[str, Columns]]:
        """For each run the tables of its cell."""
        return [
            {
                "records": self._records(i),
                "end": self._end(i, x[i]),
                "run": {"multipliers": multipliers[i : i + 1].numpy(), "skipped": skipped[i : i + 1].numpy()},
            }
            for i in range(len(self.splits))
        ]

    def _records(self, i: int) -> Columns:
        steps = np.array([step for step, _ in self.records[i]])
        losses = torch.stack([losses for _, losses in self.records[i]])  # (records, parts, 1 + G)
        return {"step": steps} | {part: losses[:, p].numpy() for p, part in enumerate(self.parts)}

    def _end(self, i: int, x: Tensor) -> Columns:
        """By part: counts (G, 2, 2), W1, Wd between the first group and the others, score histograms (G, BINS)."""
        evaluator, data = self.evaluators[self.splits[i]], self.setting.data
        found: dict[str, list[Any]] = {"part": [], "counts": [], "w1": [], "wd": [], "wd_logits": [], "histogram": []}
        for part in self.parts:
            rows = evaluator.split.pool(part)
            logits, groups = evaluator.scores(x[None], part)[0], data.groups[self.setting.column][rows]
            names = self.setting.experiment.groups
            probabilities = Scores.of(torch.sigmoid(logits), groups, names=names)
            pairs = range(1, len(names))
            found["part"].append(part)
            found["counts"].append(Counts.of(data.y[rows], logits >= 0, groups, names=names).weight.numpy())
            found["w1"].append([w1(probabilities, 0, g) for g in pairs])
            found["wd"].append([_number(wd(probabilities, 0, g)) for g in pairs])
            found["wd_logits"].append([_number(wd(Scores.of(logits, groups, names=names), 0, g)) for g in pairs])
            found["histogram"].append(_histogram(probabilities.values, groups, len(names)))
        return {name: np.array(column) for name, column in found.items()}


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _histogram(scores: Tensor, groups: Tensor, count: int) -> NDArray[Any]:
    at = (scores * BINS).long().clamp(0, BINS - 1)
    return torch.bincount(groups * BINS + at, minlength=count * BINS).reshape(count, BINS).numpy()
