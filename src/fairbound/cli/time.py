"""`fairbound time`: how long a step of each method takes here, one run alone."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Grid

from fairbound.benchmark import config
from fairbound.benchmark.environment import describe
from fairbound.benchmark.experiment import Setting
from fairbound.benchmark.step_times import Timing
from fairbound.benchmark.store import Store
from fairbound.benchmark.timing import STEPS, measure
from fairbound.cli.printing import console
from fairbound.cli.run import Experiment, Folder, Out, Source, announce
from fairbound.data.sources import best, load

PAPERS_SECONDS = (30, 60)  # of a run: Experiment 1, Experiment 2
BUSY = 0.2  # share of a step by which the rounds of a quiet machine hardly ever differ
LEGEND = (
    "rows: that a step passes through the model, in the mean. cpu, wall: milliseconds a step, drawing its rows "
    "included. x plain: cpu beside a plain PyTorch SGD step on as many rows. {seconds}: steps made here in these "
    "seconds. steps: of the experiment."
)

Rounds = Annotated[int, typer.Option(min=1, help="Rounds in which the rows take turns; medians over them count.")]


def time_command(
    experiment: Experiment,
    folder: Folder = None,
    source: Source = None,
    rounds: Rounds = 5,
    out: Out = Path("results"),
) -> None:
    """Time a step of every row; the report draws its axes of time from what the results folder keeps."""
    chosen = config.load(experiment)
    table = load(source or best(chosen.state, folder), folder=folder)
    setting, store, screen = Setting.of(chosen, table, splits=1), Store(out), console()
    announce(setting, table.synthetic)
    times = timed(setting, store, rounds)
    screen.print(_grid(chosen, times))
    screen.print(LEGEND.format(seconds=", ".join(f"{seconds} s" for seconds in PAPERS_SECONDS)), highlight=False)
    _warn_where_busy(times, rounds)
    screen.print(f"kept in {escape(str(out))}", highlight=False)


def timed(setting: Setting, store: Store, rounds: int, steps: int = STEPS) -> dict[str, Timing]:
    """Time the rows, with a bar of progress, and keep the times."""
    times = _with_progress(setting, rounds, steps)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    store.note_times(setting.experiment.name, describe(date) | {"threads": 1}, times)
    return times


def _warn_where_busy(times: Mapping[str, Timing], rounds: int) -> None:
    differ = max(timing.spread / timing.cpu for timing in times.values())
    if differ > BUSY:
        console().print(
            f"[yellow]The rounds differ by up to {differ:.0%}[/]: the machine is busy. Try again later, or --rounds "
            f"{3 * rounds}.",
            highlight=False,
        )


def _with_progress(setting: Setting, rounds: int, steps: int) -> dict[str, Timing]:
    columns = (TextColumn("turns"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(), transient=True) as progress:
        task = progress.add_task("time", total=None)
        return measure(
            setting,
            rounds=rounds,
            steps=steps,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )


def _grid(experiment: config.Experiment, times: Mapping[str, Timing]) -> Grid:
    grid = Grid(box=None, padding=(0, 2, 0, 0), title="One step, one run alone", title_justify="left")
    grid.title_style = "bold"
    grid.add_column("row", overflow="fold")
    for name in ("rows", "cpu", "wall", "x plain", *(f"{seconds} s" for seconds in PAPERS_SECONDS), "steps"):
        grid.add_column(name, justify="right", no_wrap=True)
    for row in experiment.rows:
        timing = times[row.name]
        grid.add_row(
            escape(row.name),
            f"{row.rows_per_step(len(experiment.groups)):,.0f}",
            f"{1000 * timing.cpu:.2f}",
            f"{1000 * timing.wall:.2f}",
            f"{timing.times_plain:.1f}",
            *(f"{timing.steps_in(seconds):,}" for seconds in PAPERS_SECONDS),
            f"{row.steps:,}",
        )
    return grid
