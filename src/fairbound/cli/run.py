"""`fairbound run`: an experiment's runs, computed where the store lacks them."""

from __future__ import annotations

import datetime
import enum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Grid

from fairbound.bench import spec
from fairbound.bench.execute import Stack, execute, stacks
from fairbound.bench.setting import Setting
from fairbound.bench.store import Store
from fairbound.bench.summary import Spread, summary
from fairbound.bench.system import describe
from fairbound.cli.printing import console
from fairbound.data.sources import best, load


class Budget(enum.StrEnum):
    """How long every method runs."""

    PAPER = "paper"
    ROWS = "rows"


Experiment = Annotated[str, typer.Argument(help="income-ok-race or another of those installed, or a TOML file.")]
Folder = Annotated[Path | None, typer.Option("--data", help="The folder with census data.")]
Source = Annotated[str | None, typer.Option(help="Other data than the state's real or simulated ones.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Runs of each row on each split.")]
Splits = Annotated[int | None, typer.Option(min=1, help="Random splits; the paper's is the first.")]
Steps = Annotated[int | None, typer.Option(min=1, help="No run is longer than this.")]
Length = Annotated[Budget, typer.Option(help="The paper's seconds as steps, or equal rows for every method.")]
Out = Annotated[Path, typer.Option(help="The folder that keeps the results.")]


class Prepared(NamedTuple):
    """An experiment with its data, and its runs."""

    setting: Setting
    planned: list[Stack]
    simulated: bool


def prepared(
    experiment: str,
    folder: Path | None,
    source: str | None,
    seeds: int | None,
    splits: int | None,
    steps: int | None,
    budget: Budget,
) -> Prepared:
    """What the options of `run` and `report` say."""
    chosen = spec.load(experiment)
    table = load(source or best(chosen.state, folder), folder=folder)
    setting = Setting.of(chosen, table, splits)
    return Prepared(setting, stacks(setting, budget=budget.value, seeds=seeds, steps=steps), table.simulated)


def run_command(
    experiment: Experiment,
    folder: Folder = None,
    source: Source = None,
    seeds: Seeds = None,
    splits: Splits = None,
    steps: Steps = None,
    budget: Length = Budget.PAPER,
    out: Out = Path("results"),
) -> None:
    """Run an experiment; what the results folder already has is not computed again."""
    setting, planned, simulated = prepared(experiment, folder, source, seeds, splits, steps, budget)
    store, screen, cells = Store(out), console(), sum(len(stack.plans) for stack in planned)
    announce(setting, simulated)
    screen.print(f"{len(setting.experiment.rows)} rows, {cells} runs; results in {out}", highlight=False)
    store.note_system(describe(datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")))
    made = _with_progress(setting, store, planned)
    screen.print(f"{made} runs computed, {cells - made} were there", highlight=False)
    for part in [part for part in ("train", "selection", "test") if part in setting.parts()]:
        screen.print(_grid(setting, store, planned, part))


def announce(setting: Setting, simulated: bool) -> None:
    """What is run, and on what."""
    screen = console()
    screen.print(f"[bold]{escape(setting.experiment.title)}[/]", highlight=False)
    screen.print(escape(setting.source), highlight=False)
    if simulated:
        screen.print("[bold yellow]simulated data[/]: generated, not people")


def _with_progress(setting: Setting, store: Store, planned: list[Stack]) -> int:
    columns = (TextColumn("run-steps"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(), transient=True) as progress:
        task = progress.add_task("run", total=None)
        return execute(setting, store, planned, lambda done, total: progress.update(task, completed=done, total=total))


def _grid(setting: Setting, store: Store, planned: list[Stack], part: str) -> Grid:
    title = f"{part}: mean ± standard deviation over runs; bound {setting.experiment.bound:g}"
    grid = Grid(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left", title_style="bold")
    grid.add_column("row", overflow="fold")
    for name in ("steps", "runs", "loss", "largest violation"):
        grid.add_column(name, justify="right")
    for line in summary(setting, store, planned, part):
        grid.add_row(escape(line.row), f"{line.steps:,}", str(line.runs), _pm(line.loss), _pm(line.violation))
    return grid


def _pm(spread: Spread) -> str:
    return f"{spread.mean:.4f} ± {spread.std:.4f}"
