"""`fairbound report`: tables and figures of an experiment, from the results that `fairbound run` left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fairbound.bench.curves import curves, endings, gaps
from fairbound.bench.drawing import save
from fairbound.bench.figures import over_steps, scores, spiders, trade_off, validation
from fairbound.bench.store import Store
from fairbound.bench.summary import summary
from fairbound.bench.tables import fairness_table, split_table, tuning_table
from fairbound.bench.writing import Table
from fairbound.cli.run import (
    Budget,
    Experiment,
    Folder,
    Length,
    Out,
    Prepared,
    Seeds,
    Source,
    Splits,
    Steps,
    announce,
    prepared,
)
from fairbound.files import write_text


def report_command(
    experiment: Experiment,
    folder: Folder = None,
    source: Source = None,
    seeds: Seeds = None,
    splits: Splits = None,
    steps: Steps = None,
    budget: Length = Budget.PAPER,
    out: Out = Path("results"),
    to: Annotated[Path, typer.Option(help="The folder for tables and figures.")] = Path("report"),
) -> None:
    """Tables (text, CSV, LaTeX) and figures (PDF, PNG) of an experiment that was run with the same options."""
    found = prepared(experiment, folder, source, seeds, splits, steps, budget)
    store, name = Store(out), found.setting.experiment.name
    if len(store.missing(key for stack in found.planned for key in stack.keys)) == sum(
        len(stack.keys) for stack in found.planned
    ):
        raise ValueError(f"{out} has no results of {name} with these options; compute them first: fairbound run {name}")
    announce(found.setting, found.simulated)
    for place in (to / "tables", to / "figures"):
        place.mkdir(parents=True, exist_ok=True)
    for suffix, table in _tables(found, store):
        write_text(to / "tables" / f"{name}-{suffix}.csv", table.to_csv())
        write_text(to / "tables" / f"{name}-{suffix}.tex", table.to_latex())
        typer.echo(table.to_text())
    _draw(found, store, to / "figures", name)
    typer.echo(f"Tables (CSV, LaTeX) and figures (PDF, PNG): {to}")


def _tables(found: Prepared, store: Store) -> Iterator[tuple[str, Table]]:
    setting, planned, _ = found
    if len(setting.splits) > 1:
        yield "splits", split_table(setting, store, planned)
    elif setting.experiment.last_states > 1:
        yield "tuning", tuning_table(setting, store, planned)
    else:
        yield "fairness-printed", fairness_table(setting, store, planned, "printed")
        yield "fairness-reported", fairness_table(setting, store, planned, "reported")


def _draw(found: Prepared, store: Store, folder: Path, name: str) -> None:
    setting, planned, _ = found
    bounded, lines, ends = gaps(setting), curves(setting, store, planned), endings(setting, store, planned)
    parts = [part for part in ("train", "test") if part in setting.parts()]
    save(over_steps(lines, bounded, parts=parts), folder, f"{name}-curves")
    if "selection" in setting.parts():
        save(validation(lines, bounded), folder, f"{name}-validation")
    save(scores(ends, setting.experiment.groups, parts), folder, f"{name}-scores")
    save(spiders(ends, parts), folder, f"{name}-spiders")
    save(trade_off({part: summary(setting, store, planned, part) for part in parts}), folder, f"{name}-trade-off")
