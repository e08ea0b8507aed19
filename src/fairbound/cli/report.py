"""`fairbound report`: pages, tables and figures of studies, from the results folder alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fairbound.cli.options import (
    Algorithm,
    Budget,
    Folder,
    Group,
    Label,
    Out,
    Seeds,
    Source,
    Splits,
    Steps,
    Studies,
    To,
)
from fairbound.cli.printing import console, progress

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.benchmark.report import Section
    from fairbound.benchmark.report_table import ReportTable
    from fairbound.benchmark.store import Store
    from fairbound.benchmark.stored_study import StoredStudy

MIN_WIDTH = 80  # letters of a terminal's line
MAX_LINES = 110  # on a terminal: a longer table is read in its file

Chosen = Annotated[
    Budget | None,
    typer.Option(help="The paper's seconds as steps, or equal examples; by default both that have results."),
]


def report_command(
    studies: Studies,
    folder: Folder = None,
    source: Source = None,
    label: Label = None,
    group: Group = None,
    seeds: Seeds = None,
    splits: Splits = None,
    steps: Steps = None,
    budget: Chosen = None,
    algorithm: Algorithm = None,
    out: Out = Path("results"),
    to: To = Path("report"),
) -> None:
    """Write one page, tables (CSV, LaTeX) and figures (PDF) of studies that were run with the same options."""
    from fairbound.benchmark.board.page import write_board
    from fairbound.benchmark.board.results import Board
    from fairbound.benchmark.store import Store
    from fairbound.cli.engine import announce, planned

    store, announced, boards = Store(out), list["StoredStudy"](), list["Board"]()
    for name in dict.fromkeys(studies):
        found: list[StoredStudy] = []
        for one in Budget if budget is None else (budget,):
            plan = planned(
                name, folder=folder, source=source, label=label, group=group, seeds=seeds, splits=splits, steps=steps,
                budget=one.value, algorithm=algorithm,
            )  # fmt: skip
            found += [
                study for study in stored_studies(plan.study.name, plan.study.digest, store) if study not in found
            ]
            if plan.study.page == "board":
                break
        if not found:
            raise ValueError(
                f"{store.folder} has no results of {name} with these options; compute them first: fairbound run {name}"
            )
        announced += found
        boards += [Board.read(study, store) for study in found if study.page == "board"]
    sections = sections_of([study for study in announced if study.page == "report"], store)
    screen = console()
    announce(announced)
    if boards:
        screen.print(f"Page: {write_board(boards, to if not sections else to / 'board')}", highlight=False)
    if sections:
        show_and_write(sections, to, store)


def show_and_write(sections: Sequence[Section], to: Path, store: Store) -> None:
    """On the terminal and as files; then what to run next."""
    show(sections, to)
    page, screen = write_with_progress(sections, to, store), console()
    screen.print(f"\nReport: {page}; tables (CSV, LaTeX) and figures are beside it.", highlight=False, soft_wrap=True)
    for command, words in {command: words for one in sections for command, words in one.next.items()}.items():
        screen.print(f"Next: {escape(command)}  ({words})", highlight=False, soft_wrap=True)


def stored_studies(name: str, digest: str, store: Store) -> list[StoredStudy]:
    """As they were asked, on real and on generated data; with at least one result each."""
    from fairbound.benchmark.stored_study import StoredStudy

    found = map(StoredStudy.from_json, store.studies(f"{name}-{digest}*").values())
    return [study for study in found if any(store.is_named(run.key) for run in study.runs)]


def sections_of(studies: Sequence[StoredStudy], store: Store) -> list[Section]:
    """What the report says: of the paper's statements first, then of every study."""
    from fairbound.benchmark.report import Section
    from fairbound.benchmark.results import Results

    results = [Results.read(study, store) for study in studies]
    return [*Section.of_paper(results), *map(Section.of, results)]


def show(sections: Sequence[Section], to: Path) -> None:
    """The tables that are short enough for a terminal, where the others will be, and what was found."""
    from fairbound.benchmark.report import file_stems

    for one, stem in zip(sections, file_stems(sections), strict=True):
        for name, table in one.tables.items():
            show_table(table, to / "tables" / f"{stem}-{name}.csv")
        console().print(f"\n{escape(one.finding)}", highlight=False)
        if one.agreement:
            console().print(escape(one.agreement), highlight=False)


def show_table(table: ReportTable, path: Path) -> None:
    """With its title and notes, or where its file is."""
    screen = console()
    screen.print(f"\n[bold]{escape(table.title)}[/]", highlight=False)
    text = table.to_text(max(screen.width, MIN_WIDTH))
    if text.count("\n") > MAX_LINES or max(map(len, text.splitlines())) > max(screen.width, MIN_WIDTH):
        screen.print(f"{len(table.frame)} lines, in {path}", highlight=False, soft_wrap=True)
        return
    for thing in (text, *table.notes):
        screen.print(escape(thing), highlight=False)


def write_with_progress(sections: Sequence[Section], to: Path, store: Store) -> Path:
    """Write the report, with progress."""
    from fairbound.benchmark.report import write_report

    with progress("tables and figures") as advanced:
        return write_report(sections, to, store.systems(), advanced)
