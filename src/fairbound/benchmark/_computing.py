"""The runs of a task, computed together: their tables, and what they took."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fairbound.benchmark._measuring import (
    Evaluator,
    Recorder,
    against_targets,
    by_group,
    held_out,
    multiplier_distance,
    parts_at_end,
)
from fairbound.benchmark.problems._catalog import Instance
from fairbound.benchmark.problems._changes import CHANGES
from fairbound.training._checkpoint import Checkpoint
from fairbound.training._problem import Problem
from fairbound.training._runner import run

if TYPE_CHECKING:
    from fairbound.benchmark._task import Task

# of a batch, over runs and records: compiling saves .03 us of each
COMPILED_EVALUATION_EXAMPLES = 5_000_000


class Computed(NamedTuple):
    """The runs of a task."""

    tables: list[dict[str, Any]]  # of every run
    seconds: float
    step_seconds: float  # CPU seconds of a step of one run


def compute(task: Task, advanced: Callable[[float], None], path: Path) -> Computed:
    """`advanced` receives the share that is done; a long computation is kept in the file `path` and
    goes on from it."""
    start, steps, card = perf_counter(), task.steps, task.card
    instance = task.built() if task.device == "cpu" else task.built().to(task.device)
    entries = [task.entries[one.entry] for one in task.runs]
    moved = [
        entry.moved(steps, card.primal, CHANGES[one.change].rate)
        for one, entry in zip(task.runs, entries, strict=True)
    ]
    methods, splits = [method for method, _ in moved], [one.split for one in task.runs]
    problem = (
        instance.problem if task.kind != "groups" else _varied(instance, task.variant(entries[0]))
    )
    samplers = [
        instance.sampler(one.split, one.seed, variant=problem, batch=entry.batch, pools=entry.pools)
        for one, entry in zip(task.runs, entries, strict=True)
    ]
    wants_feasible = task.kind == "groups" and getattr(methods[0], "needs_feasible_start", False)
    starts = (instance.feasible_starts or instance.starts if wants_feasible else instance.starts)(
        [one.seed for one in task.runs]
    )
    recorder = Recorder(splits)
    computation = run(
        problem,
        methods,
        samplers,
        starts,
        steps,
        every=task.recorded(),
        compile=None if task.kind == "groups" else False,
        primal=[primal for _, primal in moved],
        checkpoint=Checkpoint(path, recorder.kept, recorder.restore),
    )
    evaluators = _evaluators(task, instance, problem, computation.compiled)
    measure = by_group(evaluators) if evaluators else against_targets(instance, starts)
    records = iter(computation)
    while True:
        before = process_time()
        record = next(records, None)
        recorder.stepping += process_time() - before
        if record is None:
            break
        recorder.add(record, measure)
        advanced(record.step / steps)
    result = computation.result()
    epochs_per_step = task.examples_per_step / instance.examples
    tables: list[dict[str, Any]] = []
    for i, one in enumerate(task.runs):
        end = {
            "skipped": result.skipped[i : i + 1].cpu().numpy(),
            "multiplier_distance": np.array(
                [multiplier_distance(instance, result.multipliers[i].cpu())]
            ),
            "multipliers": result.multipliers[i : i + 1].cpu().numpy(),
        }
        tables.append({"records": recorder.records(i, epochs_per_step), "end": end})
        if evaluators:
            tables[i]["parts"] = parts_at_end(evaluators[one.split], result.x[i])
        if task.kind == "heldout" or "test" in task.measured:
            end_point = result.x[i] if evaluators else result.output[i]
            tables[i]["heldout"] = held_out(instance, one.split, end_point)
    return Computed(tables, perf_counter() - start, recorder.stepping / steps / len(methods))


def _evaluators(
    task: Task, instance: Instance, problem: Problem, compiled: bool
) -> dict[int, Evaluator]:
    """Evaluators by split, of a table that is measured by group."""
    if task.kind != "groups":
        return {}
    column = next(iter(problem.data.groups))
    examples = (
        sum(len(instance.splits[0].pool(part)) for part in task.measured)
        * len(task.runs)
        * task.records
    )
    compiled = compiled and examples >= COMPILED_EVALUATION_EXAMPLES
    return {
        split: Evaluator(
            problem.forward,
            problem.loss,
            problem.data,
            column,
            instance.splits[split],
            task.measured,
            compiled,
        )
        for split in dict.fromkeys(one.split for one in task.runs)
    }


def _varied(instance: Instance, variant: tuple[str, float, float]) -> Problem:
    if instance.variant is None:
        raise ValueError("losses by group are measured on a table, a problem in TOML")
    return instance.variant(*variant)
