"""Tables on a terminal: columns that do not fit beside each other stand in blocks below each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import JustifyMethod
from rich.markup import escape
from rich.table import Table as Grid

from fairbound.benchmark.table_writers import Column, Table

NAME = 28  # letters of the first column; longer names are wrapped
BETWEEN = 2  # columns
MOST = 80  # lines: a longer table is read in its file


def grids(table: Table, width: int) -> list[Grid] | None:
    """The table within this width, every block with the first column again; None where it would be too long.

    >>> table = Table("Names", (Column("row"), Column("steps", "whole")), (("SGD", 10), ("ALM", 20)))
    >>> [block.row_count for block in grids(table, width=80)]
    [2]
    """
    shown, widths = table.shown(), _widths(table)
    blocks = list(_blocks(widths, width))
    if len(blocks) * (len(table.rows) + 2) > MOST:
        return None
    return [_grid(table.columns, block, shown, widths) for block in blocks]


def _blocks(widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Places of the columns that stand beside each other."""
    block: list[int] = []
    for at in range(1, len(widths)):
        if block and min(widths[0], NAME) + sum(BETWEEN + widths[i] for i in (*block, at)) > width:
            yield block
            block = []
        block.append(at)
    yield block


def _widths(table: Table) -> list[int]:
    """Of values in one line; a header is wrapped between its words, into two lines or three."""
    values = [[row[at] for row in table.shown()] for at in range(len(table.columns))]
    headers = [max(-(-len(column.name) // 2), *map(len, column.name.split())) for column in table.columns]
    return [max(header, *map(len, cells)) if cells else header for header, cells in zip(headers, values, strict=True)]


def _grid(
    columns: Sequence[Column], block: Sequence[int], shown: Sequence[Sequence[str]], widths: Sequence[int]
) -> Grid:
    grid = Grid(box=None, padding=(0, BETWEEN, 0, 0), pad_edge=False)
    grid.add_column(escape(columns[0].name), max_width=NAME, overflow="fold")
    for at in block:
        side: JustifyMethod = "left" if columns[at].kind == "text" else "right"
        grid.add_column(escape(columns[at].name), justify=side, min_width=widths[at], max_width=widths[at])
    for row in shown:
        grid.add_row(escape(row[0]), *(escape(row[at]) for at in block))
    return grid
