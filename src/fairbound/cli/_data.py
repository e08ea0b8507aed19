"""`fairbound data list` and `fairbound data fetch`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fairbound.cli._printing import console, print_body
from fairbound.reports._table import ReportTable

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.data._acs_files import SurveyFile


def list_command(
    folder: Annotated[
        Path | None,
        typer.Option("--data", help="Folder to search.", show_default="the usual places"),
    ] = None,
) -> None:
    """List the data sources: census files found on this machine, and the synthetic census."""
    from fairbound.data import _acs_files as acs_files
    from fairbound.data._synthetic import STATES, population

    out = console()
    there = acs_files.available(folder)
    rows = [_row(file) for file in there]
    for state in STATES:
        people = int(population(state).counts.sum())
        content = f"Income, {people:,} rows"
        rows.append(
            {
                "source": f"synthetic:{state}",
                "content": content,
                "file": "(generated, fitted to the real extract)",
            }
        )
    print_body([ReportTable.of_rows("", rows)], out)
    if not there:
        none = f"{folder}, which does not exist" if folder else "none of the usual places exists"
        searched = ", ".join(str(place) for place in acs_files.folders(folder)) or none
        out.print(
            f"No census files were found (searched: {escape(searched)}).",
            highlight=False,
            soft_wrap=True,
        )
        out.print(
            "`fairbound data fetch OK VA` gets them; $FAIRBOUND_DATA or --data name a folder.",
            highlight=False,
        )


def _row(found: SurveyFile) -> dict[str, str]:
    task = found.task or "every task"
    content = f"{task}, {found.year or 'any year'}, {_size(found.path)}"
    return {"source": found.source, "content": content, "file": str(found.path)}


def _size(path: Path) -> str:
    if path.suffix == ".parquet":
        from fairbound._utils.optional import need

        try:
            return (
                f"{need('pyarrow.parquet', 'data', 'Parquet').read_metadata(path).num_rows:,} rows"
            )
        except (OSError, ValueError):
            return "damaged"
    return f"{path.stat().st_size / 1e6:.0f} MB"


def fetch_command(
    states: Annotated[list[str], typer.Argument(help="Two-letter codes of states, e.g. OK VA.")],
    year: Annotated[int, typer.Option(help="Year of the survey.")] = 2018,
    horizon: Annotated[str, typer.Option(help="1-Year or 5-Year survey.")] = "1-Year",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--data",
            "-o",
            help="Folder to save to.",
            show_default="$FAIRBOUND_DATA or the user's cache",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Another server with the same files.", show_default="the Census Bureau's"
        ),
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, help="Number of further attempts after a failure.")
    ] = 4,
) -> None:
    """Download person files of the American Community Survey; files that are already there are
    kept."""
    from fairbound.data._download import CENSUS, fetch

    out = console()
    printed = partial(out.print, highlight=False, soft_wrap=True, markup=False)
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=out, transient=True) as shown:
        paths = fetch(
            states, year, horizon, folder, url or CENSUS, _Bar(shown), retries, report=printed
        )
    for path in paths:
        printed(str(path))


class _Bar:
    """Rich's progress bar in the form that pooch calls."""

    def __init__(self, shown: Progress) -> None:
        self.shown, self.task = shown, shown.add_task("")
        self.total = 0  # bytes, set by pooch

    def update(self, count: int) -> None:
        self.shown.update(self.task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self.shown.reset(self.task)

    close = reset
