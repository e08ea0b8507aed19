"""Columns from a CSV or parquet file, a data frame, arrays, lists or tensors.

An empty field of a CSV file is missing, and so are the words in `MISSING_MARKS`; "None" is not
among them, since surveys use it as an answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound._utils.optional import need
from fairbound._utils.sentences import marked_rows
from fairbound.columns._column import Column, ColumnTypeError
from fairbound.columns._files import FileSettings, columns_of_file

MISSING_MARKS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
READABLE = (
    "the path of a CSV or parquet file, a pandas or polars DataFrame, or a dict of columns (for"
    " arrays X and y, use table_of)"
)


class ColumnsRead(dict[str, NDArray[Any]]):
    """Columns by name; asking for a column that could not be read raises an error that says why."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, str] = {}  # name -> a sentence
        self.notes: list[str] = []  # what was assumed in reading
        self.header: list[str] = []  # of a file, whose columns were not all read

    def __contains__(self, name: object) -> bool:
        if name in self.errors:
            raise ValueError(self.errors[str(name)])
        return super().__contains__(name)

    def __missing__(self, name: str) -> NDArray[Any]:
        raise ValueError(self.errors[name]) if name in self.errors else KeyError(name)


def read_columns(
    source: Any,
    *,
    sep: str | None = None,
    missing: Sequence[str] = MISSING_MARKS,
    encoding: str | None = None,
    decimal: str | None = None,
    only: Sequence[str] | None = None,
    threads: bool = True,
) -> ColumnsRead:
    """Read columns by name; one that is neither numbers nor text, that is ambiguous, or that occurs
    twice with different values, raises an error when you ask for it, not before.

    Args:
        source: the path of a CSV or parquet file, a data frame, or a mapping of names to columns.
        sep: what separates the fields of a CSV file; detected if not given.
        missing: the words that mark a missing value in a CSV file.
        encoding: of a CSV file; detected if not given, and a note says so if it is not Unicode.
        decimal: "." or ",", what begins the decimals in a CSV file; detected if not given.
        only: the columns of a file that you need: a large file is then streamed, and only these
            columns are held in memory.
        threads: whether a file is read by several threads.

    >>> read_columns({"age": [30, None], "job": ["nurse", "clerk"]})["age"]
    array([30., nan])
    """
    columns, where = ColumnsRead(), name_of(source)
    if decimal not in (None, ".", ","):
        raise ValueError(f'decimal is "." or ",", got {decimal!r}')
    if isinstance(source, str | os.PathLike):
        wanted = None if only is None else one_or_several(only)
        settings = FileSettings(sep, one_or_several(missing), encoding, wanted, decimal, threads)
        read = columns_of_file(Path(source), settings)
        pairs = list(read.columns.values())
        columns.notes, columns.header, columns.errors = read.notes, read.header, read.errors
    elif isinstance(source, Mapping):
        pairs = list(source.items())
    else:
        pairs = _from_frame(source)
    for name, values in pairs:
        try:
            _add(columns, str(name), Column.of(values, str(name)), where)
        except ColumnTypeError as error:
            columns.errors[str(name)] = str(error)
    if columns.errors and not columns:
        raise ValueError("; ".join(columns.errors.values()))
    lengths = {name: len(column) for name, column in columns.items()}
    if not lengths or not max(lengths.values()):
        raise ValueError(f"{where} has no {'rows' if columns else 'columns'}")
    if len(set(lengths.values())) > 1:
        shortest, longest = (
            min(lengths, key=lengths.__getitem__),
            max(lengths, key=lengths.__getitem__),
        )
        raise ValueError(
            f"the columns differ in length: {shortest!r} has {lengths[shortest]} rows, {longest!r}"
            f" {lengths[longest]}"
        )
    return columns


def _add(columns: ColumnsRead, name: str, column: Column, where: str) -> None:
    """One more column; the same values under the same name are one column."""
    if name in columns.errors:
        return
    if name not in columns.keys():  # noqa: SIM118, `in` asks for the column
        columns[name] = column.values
        return
    earlier = Column(name, columns[name])
    same = np.asarray(earlier.values == column.values) | (earlier.missing & column.missing)
    if earlier.kind != column.kind:
        same[:] = False
    if not same.all():
        del columns[name]
        first = same.argmin()
        columns.errors[name] = (
            f"{where} has the column {name!r} more than once, with different values, such as"
            f" {earlier.values[first]!s} and {column.values[first]!s}, in {marked_rows(~same)};"
            " rename or remove one"
        )


def _from_frame(source: Any) -> list[tuple[str, Any]]:
    narwhals = need("narwhals", "data", "Reading a data frame")
    if hasattr(source, "collect"):
        raise ValueError(f"{name_of(source)} is lazy; collect() it first")
    if not hasattr(source, "columns"):
        raise ValueError(f"cannot read {name_of(source)}; give {READABLE}")
    # pandas allows names twice, narwhals does not
    if hasattr(source, "iloc") and not source.columns.is_unique:
        return [(name, source.iloc[:, i]) for i, name in enumerate(source.columns)]
    try:
        frame = narwhals.from_native(source, eager_only=True)
    except TypeError as error:
        raise ValueError(f"cannot read {name_of(source)}; give {READABLE}") from error
    return [(series.name, series.to_native()) for series in frame.iter_columns()]


def name_of(source: Any) -> str:
    """The name of a source in sentences."""
    if isinstance(source, str | os.PathLike):
        return Path(source).name
    if isinstance(source, Mapping):
        return "a dict of columns"
    return f"a {type(source).__module__.partition('.')[0]} {type(source).__name__}"


def one_or_several(names: Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
