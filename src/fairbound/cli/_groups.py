"""`fairbound groups`: the subgroups that attributes define, and how many rows are in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from fairbound._utils.files import check_place, write_text
from fairbound._utils.sentences import counted
from fairbound.cli._printing import console, plain, print_body
from fairbound.reports._table import WHOLE, Measured, ReportTable
from fairbound.reports._words import percent, visible

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.columns._attributes import Grouping
    from fairbound.metrics._intervals import IntervalEstimate

FEW_ROWS = 50  # below, a group's rates are uncertain


def groups_command(
    source: Annotated[str, typer.Argument(help="acs:OK, synthetic:OK, or a CSV or parquet file.")],
    by: Annotated[
        str,
        typer.Option(
            help="Protected columns, e.g. SEX,RAC1P; in bands: AGEP:25:65; one level: RAC1P=1."
        ),
    ],
    label: Annotated[
        str | None, typer.Option(help="Label column of a file, to show its rate of 1 by group.")
    ] = None,
    positive: Annotated[
        str | None, typer.Option(help="Label value that counts as 1, if not 0/1, yes/no, ...")
    ] = None,
    min_size: Annotated[
        int, typer.Option(min=0, help="Smallest group size, in rows; see --small.")
    ] = 0,
    small: Annotated[
        Literal["merge", "drop"],
        typer.Option(help="Merge groups below --min-size into one, or drop them."),
    ] = "merge",
    top: Annotated[
        int, typer.Option(min=1, help="Number of groups to print, the largest first.")
    ] = 15,
    folder: Annotated[Path | None, typer.Option("--data", help="Folder with census data.")] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", "-o", help="Write all groups to this file.")
    ] = None,
) -> None:
    """List the intersectional groups of a table: how many are definable, how many are populated,
    and their sizes."""
    from fairbound.columns._attributes import Intersection
    from fairbound.columns._specs import is_census_export, parse_attributes
    from fairbound.data._table import is_census

    check_place(json_out, [source])
    columns, outcome, name = _columns(source, label, positive, folder)
    census = is_census(source) or is_census_export(by, columns)
    intersection = Intersection(tuple(parse_attributes(by, columns, census)))
    found = intersection.group(columns, min_size, small)
    order = found.sizes.argsort(descending=True, stable=True).tolist()
    rates = _rates(found, outcome)
    if json_out is not None:  # before anything is printed
        write_text(
            json_out,
            json.dumps(_as_dict(found, order, rates, name), indent=1, allow_nan=False) + "\n",
        )
    out = console()
    if is_census(source) and name.startswith("synthetic:"):
        out.print("[bold yellow]synthetic data[/]: generated, not real")
    _summary(found, len(next(iter(columns.values()))), name, min_size, out)
    print_body([_table(found, order[:top], rates)], out)
    if len(found) > top:
        out.print(
            f"... and {counted(len(found) - top, 'smaller group')} (--top, --json)", highlight=False
        )
    if json_out is not None:
        typer.echo(visible(f"All groups, as JSON: {json_out}"))


def _columns(
    source: str, label: str | None, positive: str | None, folder: Path | None
) -> tuple[dict[str, Any], Any, str]:
    """The columns, the label as 0 and 1 (None where there is none), and the source's name."""
    from fairbound.columns._column import column_named
    from fairbound.columns._labels import binary
    from fairbound.columns._read import read_columns
    from fairbound.data._sources import load
    from fairbound.data._table import is_census

    if not is_census(source):
        columns = read_columns(source)
        y = None if label is None else binary(column_named(label, columns), label, positive)
        return columns, y, Path(source).name
    if label is not None:
        raise ValueError(
            f"{source} is census data: its label is that of its task, --label is for files"
        )
    table = load(source, folder=folder, missing=None)
    return dict(table.columns), binary(table.columns[table.label], table.label), table.source


def _summary(found: Grouping, rows: int, name: str, min_size: int, console: Console) -> None:
    levels = " x ".join(f"{attribute.name} ({attribute.size})" for attribute in found.attributes)
    console.print(
        f"[bold]{plain(name)}[/]: {counted(rows, 'row')}, by {plain(levels)}", highlight=False
    )
    sizes = found.sizes
    few = int((sizes < FEW_ROWS).sum())
    console.print(
        f"{counted(found.definable, 'definable group')}, {found.populated:,} populated"
        + (f", {few:,} of {len(found):,} with fewer than {FEW_ROWS} rows" if few else ""),
        highlight=False,
    )
    if found.merged:
        console.print(
            f"{counted(found.merged, 'group')} of fewer than {min_size} rows merged into (other)"
        )
    if found.dropped:
        console.print(
            f"{counted(found.dropped, 'row')} dropped, in groups of fewer than {min_size}"
        )
    if len(found):
        low, middle, high = int(sizes.min()), float(sizes.double().quantile(0.5)), int(sizes.max())
        console.print(
            f"sizes: smallest {low:,}, median {middle:,.0f}, largest {high:,}", highlight=False
        )


def _rates(found: Grouping, outcome: Any) -> list[IntervalEstimate] | None:
    """The rate of label 1 with its interval, by group."""
    if outcome is None or len(found) == 0:
        return None
    import torch

    from fairbound.metrics._intervals import IntervalEstimate, wilson

    y, inside = torch.as_tensor(outcome), found.ids >= 0
    hits = torch.bincount(found.ids[inside], y[inside].double(), minlength=len(found))
    rate = hits / found.sizes
    table = torch.stack([rate, *wilson(rate, found.sizes.double(), 0.95)], -1)
    return [IntervalEstimate(*three) for three in table.tolist()]


def _table(found: Grouping, shown: list[int], rates: list[IntervalEstimate] | None) -> ReportTable:
    total, rows = max(int(found.sizes.sum()), 1), []
    for i in shown:
        size = int(found.sizes[i])
        row = {"group": found.name(i), "rows": size, "share": size / total}
        rows.append(row if rates is None else row | {"base_rate": Measured(*rates[i])})
    formats: dict[str, Any] = {"rows": WHOLE, "share": percent, "base_rate": "{:.3f}"}
    headings = {"base_rate": "label = 1 [95 %]"}
    return ReportTable.of_rows("", rows, formats=formats, headings=headings)


def _as_dict(
    found: Grouping, order: list[int], rates: list[IntervalEstimate] | None, name: str
) -> dict[str, Any]:
    return {
        "source": name,
        "by": [
            {"name": attribute.name, "levels": attribute.size} for attribute in found.attributes
        ],
        "definable": found.definable,
        "populated": found.populated,
        "merged": found.merged,
        "dropped": found.dropped,
        "groups": _table(found, order, rates).records(),
    }
