"""`fairbound report`: pages, tables and figures of studies, from the results folder alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.markup import escape

from fairbound._utils.sentences import counted
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
    from fairbound.benchmark.board.results import Board, SentEntry
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
    from fairbound.benchmark.store import Store
    from fairbound.cli.engine import announce, planned

    store, announced = Store(out), list["StoredStudy"]()
    for name in dict.fromkeys(studies):
        stored: dict[str, StoredStudy] = {}
        for length in get_args(Budget) if budget is None else (budget,):
            plan = planned(
                name, folder=folder, source=source, label=label, group=group, seeds=seeds, splits=splits, steps=steps,
                budget=length, algorithm=algorithm,
            )  # fmt: skip
            stored |= stored_studies(plan.study.name, plan.study.digest, store)
        if not stored:
            raise ValueError(
                f"{store.folder} has no results of {name} with these options; compute them first: fairbound run {name}"
            )
        announced += stored.values()
    announce(announced)
    show_and_write(announced, store, to)


def show_and_write(studies: Sequence[StoredStudy], store: Store, to: Path, sent: Sequence[SentEntry] = ()) -> None:
    """The pages of studies, with entries that were sent: on the terminal and as files; then what to run next."""
    from fairbound.benchmark.board.page import write_board
    from fairbound.benchmark.board.results import Board

    reports = [study for study in studies if study.page == "report"]
    boards = [Board.read(study, store, sent) for study in studies if study.page == "board"]
    if boards:
        page = write_board(boards, to / "board" if reports else to)
        for board in boards:
            show_board(board)
        console().print(f"Page: {page}", highlight=False, soft_wrap=True)
    if not reports:
        return
    sections = sections_of(reports, store)
    show(sections, to)
    page, screen = write_with_progress(sections, to, store), console()
    screen.print(f"\nReport: {page}; tables (CSV, LaTeX) and figures are beside it.", highlight=False, soft_wrap=True)
    for command, words in {command: words for one in sections for command, words in one.next.items()}.items():
        screen.print(f"Next: {escape(command)}  ({words})", highlight=False, soft_wrap=True)


def stored_studies(name: str, digest: str, store: Store) -> dict[str, StoredStudy]:
    """As they were asked, on real and on generated data; with at least one result each."""
    from fairbound.benchmark.stored_study import StoredStudy

    studies = {file: StoredStudy.from_json(study) for file, study in store.studies(f"{name}-{digest}*").items()}
    return {file: study for file, study in studies.items() if any(store.is_named(run.key) for run in study.runs)}


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


def show_board(board: Board) -> None:
    """The shares of every method, and what was found."""
    from fairbound.benchmark.board.findings import finding, interval, listed, overall
    from fairbound.benchmark.board.results import PARTS

    screen = console()
    screen.print(f"\n[bold]Share of instances solved, {board.rules} rules[/]", highlight=False)
    if board.shares:
        parts = "  ".join(f"{PARTS[part]:<17}" for part in board.parts)
        less = "" if board.baseline is None else f"less {board.names[board.baseline]}"
        screen.print(f"{'method':<22}  {parts}  {less}".rstrip(), highlight=False)
    for stated, i in [(one, i) for one in list(board.shares.values())[:1] for i in one.order]:
        method = board.methods[i]
        shares = "  ".join(f"{f'{one.share[i]:.2f} {interval(one.interval[i])}':<17}" for one in board.shares.values())
        difference = ""
        if board.baseline is not None and i != board.baseline:
            ends = interval(stated.difference_interval[i, board.baseline])
            difference = f"{stated.difference[i, board.baseline]:+.2f} {ends}"
        name = f"{method.name[:21]}{'*' if method.own_step else ''}"
        screen.print(escape(f"{name:<22}  {shares}  {difference}".rstrip()), highlight=False)
    if any(method.own_step for method in board.methods):
        screen.print("* moves x by a step of its own, the others by the problem's primal step")
    for sentence in overall(board):
        screen.print(escape(sentence), highlight=False)
    card = board.default_problem
    screen.print(f"\n{escape(f'{card.name}: {finding(board, card)}')}", highlight=False)
    refused: dict[str, list[str]] = {}
    for (name, instance), _ in board.reasons().items():
        refused.setdefault(name, []).append(str(instance))
    for name, some in refused.items():
        words = f"{name} has no runs, or none that is ever feasible, on {counted(len(some), 'instance')}, "
        screen.print(escape(f"{words}such as {listed(some[:2])}: its page says why"), highlight=False)


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
