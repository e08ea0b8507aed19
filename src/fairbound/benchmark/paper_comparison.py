"""Our figures beside the paper's: columns that hold both, the table of those that differ, and what stands below tables.

A figure of ours meets the paper's where it lies within two of the paper's standard deviations of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fairbound.benchmark.config import Printed
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.summary import Run, Spread
from fairbound.benchmark.table_writers import MARK, Column, Difference, Table, Value

HALF_A_DIGIT = 0.0005  # the appendix prints three digits: a standard deviation of 0.000 is one below this
OTHER_READINGS = ("Wd of logits",)  # held against a figure of the paper that another line is held against too


def compared(name: str) -> tuple[Column, Column, Column]:
    """Columns for what `beside` gives."""
    return Column(name, "spread"), Column(f"{name}, paper", "spread"), Column(f"{name}, difference", "difference")


def beside(ours: Spread | None, paper: Printed | None) -> tuple[Spread | None, Spread | None, Difference | None]:
    """Ours, the paper's, and their difference; where the paper prints a standard deviation of 0, it is rounded.

    >>> _, _, difference = beside(Spread(0.45, 0.01), Printed(0.40, 0.02))
    >>> round(difference.value, 6), difference.marked
    (0.05, True)
    """
    if paper is None:
        return ours, None, None
    if ours is None:
        return None, Spread(*paper), None
    difference = ours.mean - paper.mean
    near = abs(difference) <= 2 * _deviation(paper.std)
    return ours, Spread(*paper), Difference(difference, marked=not near)  # what is not finite is not near


def _deviation(std: float) -> float:
    return max(std, HALF_A_DIGIT)


def mark_note(rows: Sequence[tuple[Value, ...]]) -> list[str]:
    """What the mark says, where there is one."""
    marked = any(isinstance(value, Difference) and value.marked for row in rows for value in row)
    return [f"{MARK} more than two of the paper's standard deviations from its mean."] if marked else []


# Where ours differ ----------------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """One figure of the paper and ours."""

    row: str
    figure: str
    ours: Spread
    paper: Spread
    difference: Difference


def differences(title: str, tables: Iterable[Table]) -> Table | None:
    """Every figure that does not meet the paper's, of tables with columns as `compared` gives them.

    None where nothing is held against the paper.
    """
    found = [one for table in tables for one in _compared_in(table)]
    if not found:
        return None
    far = [one for one in found if one.difference.marked]
    columns = (
        Column("row"), Column("figure"), Column("here", "spread"), Column("paper", "spread"),
        Column("difference", "difference"), Column("in the paper's std", "number", 1),
    )  # fmt: skip
    rows = tuple((*one, abs(one.difference.value) / _deviation(one.paper.std)) for one in far)
    met = (
        f"{len(found) - len(far)} of {len(found)} comparisons with the paper's figures are within two of its standard "
        "deviations; every reading of a method is compared."
    )
    rounded = f"A standard deviation that the paper prints as 0 counts as {HALF_A_DIGIT:g}, half of its last digit."
    return Table(title, columns, rows, (met, *([rounded] if any(one.paper.std == 0 for one in far) else [])))


def _compared_in(table: Table) -> Iterator[Compared]:
    names = [column.name for column in table.columns]
    triples = [at for at, column in enumerate(table.columns) if column.kind == "difference"]
    for row in table.rows:
        said = dict(zip(names, row, strict=True))
        figure = str(said.get("figure", ""))
        for at in triples:
            ours, paper, difference = row[at - 2 : at + 1]
            if figure in OTHER_READINGS or not isinstance(difference, Difference):
                continue
            assert isinstance(ours, Spread)
            assert isinstance(paper, Spread)
            name = f"{figure}, {names[at - 2]}" if figure else names[at - 2]
            yield Compared(str(said["row"]), name, ours, paper, difference)


# Below every table ----------------------------------------------------------------------------------------------------


def run_notes(prepared: PreparedExperiment, by_row: Mapping[str, Sequence[Run]]) -> tuple[str, ...]:
    """Where the data come from, and in what the runs are not those of the experiment."""
    missing = {name: sum(run.cell is None for run in runs) for name, runs in by_row.items()}
    missed = [f"{name} ({count} of {len(by_row[name])} runs)" for name, count in missing.items() if count]
    lengths = [
        f"{row.name} {runs[0].plan.steps:,} for {row.steps:,}"
        for row in prepared.experiment.rows
        if (runs := by_row[row.name]) and runs[0].plan.steps != row.steps
    ]
    return (
        f"Data: {prepared.source}.",
        *([f"Missing from the store: {', '.join(missed)}."] if missed else []),
        *([f"Other numbers of steps than the experiment's: {', '.join(lengths)}."] if lengths else []),
    )
