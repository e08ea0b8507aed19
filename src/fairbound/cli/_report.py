"""`fairbound report`: the page, tables and figures of studies, from the results folder alone."""

from __future__ import annotations

from collections.abc import Sequence
from glob import escape as as_it_is
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.markup import escape

from fairbound.cli import _options as options
from fairbound.cli._printing import console, progress, working

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.benchmark._page import Page
    from fairbound.benchmark._store import Store
    from fairbound.benchmark._stored_study import StoredStudy
    from fairbound.benchmark.board._results import SentEntry
    from fairbound.reports._table import ReportTable

MIN_WIDTH = 80  # letters of a terminal's line
_MAX_LINES = 110  # on a terminal: a longer table is read in its file

Chosen = Annotated[
    options.BudgetChoice | None,
    typer.Option(
        help="The paper's seconds as steps, or equal examples; by default both that have results."
    ),
]


def report_command(
    studies: options.StudiesArgument,
    folder: options.DataFolder = None,
    source: options.Source = None,
    label: options.Label = None,
    group: options.GroupOption = None,
    seeds: options.SeedsOption = None,
    splits: options.SplitsOption = None,
    steps: options.StepsOption = None,
    budget: Chosen = None,
    algorithm: options.AlgorithmOption = None,
    out: options.Out = Path("results"),
    to: options.To = Path("report"),
) -> None:
    """Write one page, tables (CSV, LaTeX) and figures (PDF) of studies that were run with the same
    options."""
    from fairbound.benchmark._store import Store
    from fairbound.cli._engine import announce, planned

    store, announced = Store(out), list["StoredStudy"]()
    for name in dict.fromkeys(studies):
        stored: dict[str, StoredStudy] = {}
        for length in get_args(options.BudgetChoice) if budget is None else (budget,):
            plan = planned(
                name,
                folder=folder,
                source=source,
                label=label,
                group=group,
                seeds=seeds,
                splits=splits,
                steps=steps,
                budget=length,
                algorithm=algorithm,
            )
            stored |= stored_studies(plan.study.name, plan.study.digest, store)
        if not stored:
            raise ValueError(
                f"{store.folder} has no results of {name} with these options; compute them first:"
                f" fairbound run {name}"
            )
        announced += stored.values()
    announce(announced)
    show_and_write(announced, store, to)


def stored_studies(name: str, digest: str, store: Store) -> dict[str, StoredStudy]:
    """Stored studies as they were asked, on real and on generated data; with at least one result
    each."""
    from fairbound.benchmark._stored_study import StoredStudy

    stored = store.studies(f"{as_it_is(name)}-{digest}*")
    studies = {file: StoredStudy.from_json(study) for file, study in stored.items()}
    return {file: study for file, study in studies.items() if study.has_results(store)}


def show_and_write(
    studies: Sequence[StoredStudy], store: Store, to: Path, sent: Sequence[SentEntry] = ()
) -> None:
    """The page of studies, with entries that were sent: on the terminal and as files; then what to
    run next."""
    page = read(studies, store, sent)
    show(page, to)
    path, screen = escape(str(write(page, to))), console()
    screen.print(
        f"\nPage: {path}; tables (CSV, LaTeX) and figures are beside it.",
        highlight=False,
        soft_wrap=True,
    )
    for command, words in {
        command: words for one in page.sections for command, words in one.next.items()
    }.items():
        screen.print(f"Next: {escape(command)}  ({words})", highlight=False, soft_wrap=True)


def show(page: Page, to: Path) -> None:
    """The tables that are short enough for a terminal, where the others will be, and what was
    found."""
    for stem, section in page.stems.items():
        for name, table in section.tables.items():
            if not section.on_terminal or name in section.on_terminal:
                show_table(table, to / "tables" / f"{stem}-{name}.csv")
        console().print(f"\n{escape(section.finding)}", highlight=False)
        if section.agreement:
            console().print(escape(section.agreement), highlight=False)


def show_table(table: ReportTable, path: Path) -> None:
    """Print a table with its title and notes, or where its file is."""
    screen = console()
    screen.print(f"\n[bold]{escape(table.title)}[/]", highlight=False)
    text = table.to_text(max(screen.width, MIN_WIDTH))
    if text.count("\n") > _MAX_LINES or max(map(len, text.splitlines())) > max(
        screen.width, MIN_WIDTH
    ):
        screen.print(
            f"{len(table.frame)} lines, in {escape(str(path))}", highlight=False, soft_wrap=True
        )
        return
    for thing in (text, *table.notes):
        screen.print(escape(thing), highlight=False)


def read(studies: Sequence[StoredStudy], store: Store, sent: Sequence[SentEntry] = ()) -> Page:
    from fairbound.benchmark._sections import read_page

    with working("reading results"):
        return read_page(studies, store, sent)


def write(page: Page, to: Path) -> Path:
    with progress("tables and figures") as advanced:
        return page.write(to, advanced)
