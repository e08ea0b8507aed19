"""`fairbound run`: an experiment's runs, computed where the store lacks them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape

from fairbound.benchmark.engines import Done, Engine, carry_out
from fairbound.benchmark.executor import Job, PlannedJob, plan
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.results import Results
from fairbound.benchmark.store import Store
from fairbound.benchmark.tables import summary_table
from fairbound.cli.engine import Jobs, OtherQueue, Out, Queue, Scheduler, Shard, computing, end_with, engine_of
from fairbound.cli.printing import console


class Budget(enum.StrEnum):
    """How long every method runs."""

    PAPER = "paper"
    EXAMPLES = "examples"


Experiment = Annotated[str, typer.Argument(help="income-ok-race or another of those installed, or a TOML file.")]
Folder = Annotated[Path | None, typer.Option("--data", help="The folder with census data.")]
Source = Annotated[str | None, typer.Option(help="Other data than the experiment's: acs:VA, synthetic:OK, my.csv.")]
Label = Annotated[str | None, typer.Option(help="The column to predict, of a table of your own.")]
Group = Annotated[str | None, typer.Option(help="The protected attribute, in the place of the experiment's.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Runs of each row on each split.")]
Splits = Annotated[int | None, typer.Option(min=1, help="Random splits; the paper's is the first.")]
Steps = Annotated[int | None, typer.Option(min=1, help="No run is longer than this.")]
Length = Annotated[Budget, typer.Option(help="The paper's seconds as steps, or equal examples for every method.")]
Algorithm = Annotated[
    str | None, typer.Option("--algorithm", help="A method of your own beside the others: my_file.py:MyMethod.")
]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1.")]


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
    engine = engine_of(jobs, scheduler, slurm, queue, shard, device)
    here = scheduler is None and engine.queue is None
    job = Job(
        experiment=experiment, budget=budget.value, folder=folder, source=source, label=label, group=group, seeds=seeds,
        splits=splits, steps=steps, algorithm=algorithm, device=checked_device(device, here=here),
    )  # fmt: skip
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


def checked_device(device: str, *, here: bool = True) -> str:
    """The device, if it is one of this machine's, or of workers elsewhere."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"there is no kind of device {device!r}; use cpu, cuda or cuda:1") from error
    found = torch.cuda.device_count()
    if here and kind == "cuda" and (torch.device(device).index or 0) >= found:
        raise ValueError(f"device {device!r}: this torch ({torch.__version__}) finds {found} NVIDIA devices; use cpu")
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device {device!r}: the benchmark computes on cpu or cuda")
    return device


def compute(jobs: Sequence[Job], out: Path, engine: Engine, device: str = "cpu") -> Done:
    """Carry out jobs, with a bar of progress."""
    with computing(out, device) as progress:
        return carry_out(jobs, out, engine, progress)


def announce(prepared: PreparedExperiment) -> None:
    """What is run, and on what."""
    screen = console()
    screen.print(f"[bold]{escape(prepared.experiment.title)}[/]", highlight=False)
    screen.print(escape(prepared.source), highlight=False)
    if prepared.synthetic:
        screen.print("[bold yellow]synthetic data[/]: generated, not real")


def show(planned: PlannedJob, store: Store) -> None:
    """Loss and violation of every row, on the parts that are measured."""
    results, screen = Results.read(planned.prepared, store, planned.batches), console()
    for part in [part for part in ("train", "validation", "test") if part in planned.prepared.measured()]:
        table = summary_table(results, part)
        screen.print(f"[bold]{table.title}[/]", highlight=False)
        screen.print(escape(table.to_text(max(screen.width, 80))), highlight=False)
