"""`fairbound run`: an experiment's runs, computed where the store lacks them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fairbound.cli.options import (
    Algorithm,
    Budget,
    Device,
    Experiment,
    Folder,
    Group,
    Jobs,
    Label,
    OtherQueue,
    Out,
    Queue,
    Scheduler,
    Seeds,
    Shard,
    Source,
    Splits,
    Steps,
)
from fairbound.cli.printing import console

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.benchmark.executor import PlannedJob
    from fairbound.benchmark.store import Store

Length = Annotated[Budget, typer.Option(help="The paper's seconds as steps, or equal examples for every method.")]


def run_command(
    experiment: Experiment,
    folder: Folder = None,
    source: Source = None,
    label: Label = None,
    group: Group = None,
    seeds: Seeds = None,
    splits: Splits = None,
    steps: Steps = None,
    budget: Length = Budget.PAPER,
    algorithm: Algorithm = None,
    device: Device = "cpu",
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    slurm: Queue = None,
    queue: OtherQueue = None,
    shard: Shard = None,
    out: Out = Path("results"),
) -> None:
    """Run an experiment; what the results folder already has is not computed again."""
    from fairbound.benchmark.custom_algorithm import tried_algorithm
    from fairbound.benchmark.executor import Job, plan
    from fairbound.benchmark.store import Store
    from fairbound.cli.engine import announce, checked_device, compute, end_with, engine_of

    engine = engine_of(jobs, scheduler, slurm, queue, shard, device)
    here = scheduler is None and engine.queue is None
    job = Job(
        experiment=experiment, budget=budget.value, folder=folder, source=source, label=label, group=group, seeds=seeds,
        splits=splits, steps=steps, algorithm=algorithm, device=checked_device(device, here=here),
    )  # fmt: skip
    if algorithm is not None:
        tried_algorithm(algorithm)
    planned = plan(job)
    announce(planned.prepared)
    runs = sum(len(batch.plans) for batch in planned.batches)
    screen = console()
    screen.print(f"{len(planned.prepared.experiment.rows)} rows, {runs} runs; results in {out}", highlight=False)
    done = compute([job], out, engine, device)
    if engine.shard is None:
        screen.print(f"{done.runs} runs computed, {runs - done.runs} were there", highlight=False)
        show(planned, Store(out))
    end_with(done.failed, out)


def show(planned: PlannedJob, store: Store) -> None:
    """Loss and violation of every row, on the parts that are measured."""
    from fairbound.benchmark.results import Results
    from fairbound.benchmark.tables import summary_table

    results, screen = Results.read(planned.prepared, store, planned.batches), console()
    for part in [part for part in ("train", "validation", "test") if part in planned.prepared.measured()]:
        table = summary_table(results, part)
        screen.print(f"[bold]{table.title}[/]", highlight=False)
        screen.print(escape(table.to_text(max(screen.width, 80))), highlight=False)
