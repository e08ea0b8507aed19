"""`fairbound time`: how long a step of each method takes here, one run alone."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table as Grid

from fairbound.cli.options import Experiment, Folder, Group, Label, Out, Source
from fairbound.cli.printing import console, progress

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.benchmark import config
    from fairbound.benchmark.experiment import PreparedExperiment
    from fairbound.benchmark.store import Store, Timing

PAPERS_SECONDS = (30, 60)  # of a run: Experiment 1, Experiment 2
BUSY_SPREAD = 0.2  # share of a step by which the rounds of an idle machine rarely differ
LEGEND = (
    "examples: that a step passes through the model, in the mean. cpu, wall: milliseconds a step, drawing them "
    "included. x plain: cpu beside a plain PyTorch SGD step on as many examples. {seconds}: steps made here in these "
    "seconds. steps: of the experiment."
)

Rounds = Annotated[int, typer.Option(min=1, help="Rounds in which the rows take turns; medians over them count.")]


def time_command(
    experiment: Experiment,
    folder: Folder = None,
    source: Source = None,
    label: Label = None,
    group: Group = None,
    rounds: Rounds = 5,
    out: Out = Path("results"),
) -> None:
    """Time a step of every row; the report draws its axes of time from what the results folder keeps."""
    from fairbound.benchmark.executor import Job, prepare
    from fairbound.benchmark.store import Store
    from fairbound.benchmark.timing import TURN_STEPS
    from fairbound.cli.engine import announce

    job = Job(experiment=experiment, folder=folder, source=source, label=label, group=group, splits=1)
    prepared, store, screen = prepare(job), Store(out), console()
    announce(prepared)
    times = timed(prepared, store, rounds, TURN_STEPS)
    screen.print(_grid(prepared.experiment, times))
    screen.print(LEGEND.format(seconds=", ".join(f"{seconds} s" for seconds in PAPERS_SECONDS)), highlight=False)
    _warn_where_busy(times, rounds)
    screen.print(f"kept in {escape(str(out))}", highlight=False)


def timed(prepared: PreparedExperiment, store: Store, rounds: int, steps: int) -> dict[str, Timing]:
    """Time the rows, with progress, and keep the times."""
    from fairbound.benchmark import timing
    from fairbound.benchmark.environment import describe

    with progress("timing") as advanced:
        times = timing.measure(prepared, rounds=rounds, steps=steps, progress=advanced)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    store.note_times(prepared.experiment.name, describe(date) | {"threads": 1}, times)
    return times


def _warn_where_busy(times: Mapping[str, Timing], rounds: int) -> None:
    differ = max(timing.spread / timing.cpu for timing in times.values())
    if differ > BUSY_SPREAD:
        console().print(
            f"[yellow]The rounds differ by up to {differ:.0%}[/]: the machine is busy. Try again later, or --rounds "
            f"{3 * rounds}.",
            highlight=False,
        )


def _grid(experiment: config.Experiment, times: Mapping[str, Timing]) -> Grid:
    grid = Grid(box=None, padding=(0, 2, 0, 0), title="One step, one run alone", title_justify="left")
    grid.title_style = "bold"
    grid.add_column("row", overflow="fold")
    for name in ("examples", "cpu", "wall", "x plain", *(f"{seconds} s" for seconds in PAPERS_SECONDS), "steps"):
        grid.add_column(name, justify="right", no_wrap=True)
    for row in experiment.rows:
        timing = times[row.name]
        grid.add_row(
            escape(row.name),
            f"{row.examples_per_step(len(experiment.groups)):,.0f}",
            f"{1000 * timing.cpu:.2f}",
            f"{1000 * timing.wall:.2f}",
            f"{timing.times_plain:.1f}",
            *(f"{timing.steps_in(seconds):,}" for seconds in PAPERS_SECONDS),
            f"{row.steps:,}",
        )
    return grid
