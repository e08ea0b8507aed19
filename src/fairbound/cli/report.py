"""`fairbound report`: tables, figures and a page of experiments, from the results that `fairbound run` left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fairbound.cli.options import (
    Algorithm,
    Budget,
    Device,
    Experiments,
    Folder,
    Group,
    Label,
    Out,
    Seeds,
    Source,
    Splits,
    Steps,
    To,
)
from fairbound.cli.printing import console, progress

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.benchmark.executor import Budget as BudgetName
    from fairbound.benchmark.executor import PlannedJob
    from fairbound.benchmark.report import Section
    from fairbound.benchmark.report_table import ReportTable
    from fairbound.benchmark.store import Store

MIN_WIDTH = 80  # letters of a terminal's line
MAX_LINES = 110  # on a terminal: a longer table is read in its file

Chosen = Annotated[
    Budget | None,
    typer.Option(help="The paper's seconds as steps, or equal examples; all with results unless one is named."),
]


def report_command(
    experiments: Experiments,
    folder: Folder = None,
    source: Source = None,
    label: Label = None,
    group: Group = None,
    seeds: Seeds = None,
    splits: Splits = None,
    steps: Steps = None,
    budget: Chosen = None,
    algorithm: Algorithm = None,
    device: Device = "cpu",
    out: Out = Path("results"),
    to: To = Path("report"),
) -> None:
    """One page, tables (CSV, LaTeX) and figures (PDF) of experiments that were run with the same options."""
    from fairbound.benchmark.executor import Job, plan
    from fairbound.benchmark.store import Store
    from fairbound.cli.engine import announce, checked_device

    wanted: list[BudgetName] = [one.value for one in (Budget if budget is None else (budget,))]
    store, sections = Store(out), []
    for name in dict.fromkeys(experiments):
        job = Job(
            experiment=name, folder=folder, source=source, label=label, group=group, seeds=seeds, splits=splits,
            steps=steps, algorithm=algorithm, device=checked_device(device),
        )  # fmt: skip
        found = {one: plan(replace(job, budget=one)) for one in wanted}
        announce(found[wanted[0]].prepared)
        sections += [section_of(its, store, one) for one, its in with_results(store, found).items()]
    show(sections, to)
    page = write_with_progress(sections, to, store)
    console().print(f"Report: {page}\nTables (CSV, LaTeX) and figures (PDF) are beside it.", highlight=False)


def section_of(found: PlannedJob, store: Store, budget: BudgetName) -> Section:
    """What the report says of an experiment within a budget, with axes of time where `fairbound time` has measured."""
    from fairbound.benchmark.report import Section
    from fairbound.benchmark.results import Results

    name = found.prepared.experiment.name
    times = store.times(name) or {}
    seconds = {row: timing.wall for row, timing in times.items()}
    cpu_seconds = {row: timing.cpu for row, timing in times.items()}
    timed = {"seconds": seconds, "cpu_seconds": cpu_seconds, "timed_on": store.timed_on(name) or {}}
    return Section.of(Results.read(found.prepared, store, found.batches, budget=budget, **timed))


def with_results(store: Store, found: Mapping[BudgetName, PlannedJob]) -> dict[BudgetName, PlannedJob]:
    """The budgets of which the store has results, of one experiment.

    SSL-ALM runs as long within either budget, so what budgets share says nothing about which of them was run; where
    they share everything, as short trials do, the first is used for both.
    """
    keys = {budget: {key for stack in one.batches for key in stack.keys} for budget, one in found.items()}
    alone = {budget: keys[budget].difference(*(keys[other] for other in keys if other != budget)) for budget in keys}
    for candidates in (alone, keys):
        there = [budget for budget in found if any(map(store.has, sorted(candidates[budget])))]
        if there:
            return {budget: found[budget] for budget in (there if candidates is alone else there[:1])}
    name = next(iter(found.values())).prepared.experiment.name
    raise ValueError(
        f"{store.folder} has no results of {name} with these options; compute them first: fairbound run {name}"
    )


def show(sections: Sequence[Section], to: Path) -> None:
    """What was found, the tables that are short enough for a terminal, and where the others will be."""
    from fairbound.benchmark.report import file_stems

    for one, stem in zip(sections, file_stems(sections), strict=True):
        console().print(f"\n{escape(one.finding)}", highlight=False)
        for name, table in one.tables.items():
            show_table(table, to / "tables" / f"{stem}-{name}.csv")
        if one.agreement:
            console().print(escape(one.agreement), highlight=False)


def show_table(table: ReportTable, path: Path) -> None:
    """With its title and notes, or where its file is."""
    screen = console()
    screen.print(f"\n[bold]{escape(table.title)}[/]", highlight=False)
    text = table.to_text(max(screen.width, MIN_WIDTH))
    if text.count("\n") > MAX_LINES:
        screen.print(f"{len(table.frame)} lines, in {path}", highlight=False, soft_wrap=True)
        return
    for thing in (text, *table.notes):
        screen.print(escape(thing), highlight=False)


def write_with_progress(sections: Sequence[Section], to: Path, store: Store) -> Path:
    """Write the report, with progress."""
    from fairbound.benchmark.report import write_report

    with progress("tables and figures") as advanced:
        return write_report(sections, to, store.systems(), advanced)
