"""`fairbound audit`: rates and fairness metrics of a file of predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from fairbound._utils.files import check_place, write_text
from fairbound.auditing.audits import Audit, audit_columns
from fairbound.auditing.text import explained
from fairbound.cli.printing import console
from fairbound.data.attributes import attributes
from fairbound.data.readers import read_columns
from fairbound.data.table import Small
from fairbound.metrics.intervals import IntervalEstimate

SHOWN = {"base_rate": "y = 1", "positive_rate": "ŷ = 1", "true_positive_rate": "TPR", "false_positive_rate": "FPR",
         "positive_predictive_value": "PPV", "accuracy": "acc"}  # fmt: skip


def audit_command(
    file: Annotated[str, typer.Argument(help="CSV or parquet with labels, predictions or scores, and groups.")],
    label: Annotated[str, typer.Option(help="The column with the true labels.")],
    group: Annotated[str, typer.Option(help="Protected columns: race,sex; bands: age:25:65; one against all: race=1.")],
    score: Annotated[
        str | None, typer.Option(help="The column with scores of label 1; predicted 1 from the threshold on.")
    ] = None,
    threshold: Annotated[float, typer.Option(help="For scores.")] = 0.5,
    prediction: Annotated[str | None, typer.Option(help="The column with predictions.")] = None,
    weight: Annotated[str | None, typer.Option(help="The column with sample weights.")] = None,
    positive: Annotated[str | None, typer.Option(help="The label that counts as 1, where that is not evident.")] = None,
    reference: Annotated[
        str | None, typer.Option(help="The group that others are compared to; the largest unless given.")
    ] = None,
    min_size: Annotated[int, typer.Option(min=0, help="Groups with fewer rows are merged or left out.")] = 0,
    small: Annotated[Small, typer.Option(help="Merge groups below the minimum size into one, or drop them.")] = "merge",
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    top: Annotated[int, typer.Option(min=1, help="Groups shown on the terminal, the largest.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the intervals' draws.")] = 0,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write everything to this file; - for the terminal.")
    ] = None,
    html_out: Annotated[Path | None, typer.Option("--html", help="Write a page with pictures to this file.")] = None,
) -> None:
    """Audit the predictions of any model: rates by group and every fairness metric, with intervals."""
    if (score is None) == (prediction is None):
        raise ValueError("give either --score or --prediction: the column that the model made")
    if seed < 0:
        raise ValueError(f"--seed must be 0 or more, got {seed}")
    for out in (json_out, html_out):
        check_place(out)
    columns = read_columns(file)
    found = audit_columns(
        columns,
        label=label,
        groups=attributes(group, columns),
        score=score,
        prediction=prediction,
        weight=weight,
        positive=positive,
        min_size=min_size,
        small=small,
        reference=reference,
        level=level,
        seed=seed,
        source=Path(file).name,
        **({"threshold": threshold} if score is not None else {}),
    )
    text = json.dumps(found.to_dict(), indent=2, allow_nan=False) + "\n"
    to_stdout = str(json_out) == "-"
    show(found, console(stderr=to_stdout), top)
    if to_stdout:
        typer.echo(text, nl=False)
    elif json_out is not None:
        write_text(json_out, text)
        typer.echo(f"Everything in numbers: {json_out}")
    if html_out is not None:
        from fairbound.auditing.page import write_page

        write_page(found, html_out)
        typer.echo(f"With pictures: {html_out}")


def show(found: Audit, console: Console, top: int) -> None:
    """The audit as tables of at most 80 columns."""
    weighted = ", weighted" if found.weighted else ""
    made = "predictions" if found.threshold is None else f"scores, 1 from {found.threshold:g} on"
    by = escape(" x ".join(found.attributes))
    console.print(
        f"[bold]{escape(found.source)}[/]: {found.rows:,} rows, {len(found.groups)} groups by {by}; {made}{weighted}"
    )
    if found.left_out:
        console.print(f"{found.left_out:,} rows left out, in groups that are too small")
    console.print(_groups_grid(found, top))
    hidden = len(found.groups) - top
    if hidden > 0:
        console.print(f"... and {hidden:,} smaller groups (--top, --json)", highlight=False)
    console.print(_metrics_grid(found))
    console.print(
        f"reference group: {escape(found.reference)}; intervals cover with {100 * found.level:g}%, gaps at least so"
    )
    for part in found.parts:
        console.print(_part_line(part), highlight=False)
    for note in found.notes:
        console.print(f"[yellow]Note:[/] {escape(note)}", highlight=False)


def _groups_grid(found: Audit, top: int) -> Grid:
    grid = Grid(box=None, padding=(0, 1, 0, 0), title="Groups", title_justify="left", title_style="bold")
    grid.add_column("group", overflow="fold")
    grid.add_column("rows", justify="right")
    for rate, short in SHOWN.items():
        grid.add_column(f"{short} [{100 * found.level:g}%]" if rate == "positive_rate" else short, justify="right")
    if found.groups and found.groups[0].loss is not None:
        grid.add_column("loss", justify="right")
    for group in sorted(found.groups, key=lambda group: -group.rows)[:top]:
        cells = [
            _with_interval(group.rates[rate]) if rate == "positive_rate" else _short(group.rates[rate])
            for rate in SHOWN
        ]
        losses = [] if group.loss is None else [_short(group.loss)]
        grid.add_row(escape(group.name), f"{group.rows:,}", *cells, *losses)
    return grid


def _metrics_grid(found: Audit) -> Grid:
    grid = Grid(box=None, padding=(0, 1, 0, 0), title="Metrics", title_justify="left", title_style="bold")
    grid.add_column("metric", no_wrap=True)
    grid.add_column("value", justify="right")
    grid.add_column(f"{100 * found.level:g}% interval", justify="right")
    grid.add_column("defined by", overflow="fold")
    for name, measured in found.metrics.items():
        grid.add_row(name, _value(measured), _interval(measured), explained(name)[1])
    return grid


def _part_line(part: Audit) -> str:
    shown = ("demographic_parity_difference", "equalized_odds_difference")
    numbers = ", ".join(f"{name} {_value(part.metrics[name])} {_interval(part.metrics[name])}" for name in shown)
    return f"by {escape(part.attributes[0])} alone ({len(part.groups)} groups): {escape(numbers)}"


def _value(measured: IntervalEstimate) -> str:
    return "-" if measured.value is None else f"{measured.value:.4f}"


def _interval(measured: IntervalEstimate) -> str:
    return "" if measured.low is None else f"{measured.low:.3f} to {measured.high:.3f}"


def _short(measured: IntervalEstimate) -> str:
    return "-" if measured.value is None else f"{measured.value:.3f}"


def _with_interval(measured: IntervalEstimate) -> str:
    return "-" if measured.value is None else f"{measured.value:.3f} {_ends(measured)}"


def _ends(measured: IntervalEstimate) -> str:
    ends: list[Any] = [f"{end:.2f}".removeprefix("0") for end in (measured.low or 0.0, measured.high or 0.0)]
    return escape(f"[{ends[0]}, {ends[1]}]")
