"""`fairbound run`: a study's runs, computed where the store lacks them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fairbound._utils.sentences import counted
from fairbound.cli import _options as options
from fairbound.cli._printing import console
from fairbound.cli._report import show_and_write

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.benchmark._store import Store
    from fairbound.benchmark._stored_study import StoredStudy

Length = Annotated[
    options.BudgetChoice,
    typer.Option(help="The paper's seconds as steps, or equal examples for every method."),
]

Report = Annotated[
    Path | None,
    typer.Option("--to", "-o", help="Write the page into this folder.", show_default="none"),
]


def run_command(
    study: options.StudyArgument,
    folder: options.DataFolder = None,
    source: options.Source = None,
    label: options.Label = None,
    group: options.GroupOption = None,
    seeds: options.SeedsOption = None,
    splits: options.SplitsOption = None,
    steps: options.StepsOption = None,
    budget: Length = "paper",
    algorithm: options.AlgorithmOption = None,
    device: options.Device = "cpu",
    recompute: options.Recompute = False,
    jobs: options.Jobs = None,
    scheduler: options.Scheduler = None,
    slurm: options.Queue = None,
    queue: options.OtherQueue = None,
    shard: options.Shard = None,
    out: options.Out = Path("results"),
    to: Report = None,
) -> None:
    """Run a study; reuses stored results."""
    from fairbound.benchmark._custom_algorithm import tried_algorithm
    from fairbound.benchmark._store import Store
    from fairbound.cli._engine import (
        announce,
        checked_device,
        computing,
        end_with,
        engine_of,
        planned,
    )

    engine = engine_of(jobs, scheduler, slurm, queue, shard, device)
    here = scheduler is None and engine.queue is None
    if algorithm is not None:
        tried_algorithm(algorithm)
    plan = planned(
        study,
        folder=folder,
        source=source,
        label=label,
        group=group,
        seeds=seeds,
        splits=splits,
        steps=steps,
        budget=budget,
        algorithm=algorithm,
        device=checked_device(device, here=here),
        recompute=recompute,
    )
    store, screen = Store(out), console()
    stored = plan.stored(store)
    announce([stored])
    size = f"{counted(len(stored.entries), 'method')}, {counted(len(stored.runs), 'run')}"
    screen.print(f"{size}; results in {out}", highlight=False)
    with computing(out, device) as advanced:
        done = plan.compute(store, engine, advanced)
    if engine.shard is None:
        screen.print(
            f"{counted(done.runs, 'run')} computed,"
            f" {len({run.key for run in stored.runs}) - done.runs} were there",
            highlight=False,
        )
        if to is not None and stored.has_results(store):
            show_and_write([stored], store, to)
        elif stored.page == "report":
            _show(stored, store)
        else:
            screen.print(f"next: fairbound report {study} --out {out}", highlight=False)
    end_with(done.failed, out)


def _show(stored: StoredStudy, store: Store) -> None:
    """Loss and violation of every entry, on the parts that are measured."""
    from fairbound.benchmark._results import Results
    from fairbound.benchmark._tables import summary_table

    results, screen = Results.read(stored, store), console()
    for part in [
        part for part in ("train", "validation", "test") if part in results.study.measured
    ]:
        table = summary_table(results, part)
        screen.print(f"[bold]{table.title}[/]", highlight=False)
        screen.print(escape(table.to_text(max(screen.width, 80))), highlight=False)
