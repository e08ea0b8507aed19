"""Columns from a CSV or parquet file, a data frame, arrays, lists or tensors.

A column is a numpy vector of numbers or booleans with NaN where one is missing, or of text
(objects) with None where it is missing. An empty field of a CSV file is missing, and so are the
words in `MISSING_MARKS`; "None" is not among them, since surveys use it as an answer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fairbound._utils.optional import need
from fairbound._utils.sentences import marked_rows
from fairbound.columns._attributes import column_named, is_missing
from fairbound.columns._column import ColumnTypeError, column_of
from fairbound.columns._files import columns_of_file
from fairbound.data._table import Table

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


def read_table(
    source: Any,
    *,
    label: str,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    sep: str | None = None,
    positive: Any = None,
    missing: Sequence[str] = MISSING_MARKS,
) -> Table:
    """A table from a file, a data frame or a dict of columns.

    `features` are the columns that a model may see: by default all but the label and `drop`.
    Columns that are no features stay in the table, e.g. as protected attributes. `sep` and
    `missing`, the words that mark a missing value, are for CSV files; the separator is detected
    unless you name it. `positive` is the label's value that counts as 1, where that is not evident.

    >>> table = read_table(
    ...     {"age": [30, 40], "id": [7, 8], "rich": ["no", "yes"]}, label="rich", drop=["id"]
    ... )
    >>> table.features, table.rows
    (('age',), 2)
    """
    columns = read_columns(source, sep=sep, missing=missing)
    for name in (
        label,
        *_listed(features or ()),
        *(name for name in _listed(drop) if name not in columns.errors),
    ):
        column_named(name, columns)
    for name, why in columns.errors.items():
        if features is None and name not in _listed(drop):
            raise ValueError(f"{why}; convert it, or drop it: drop=[{name!r}]")
    listed = [name for name in columns if name != label] if features is None else _listed(features)
    chosen = tuple(name for name in listed if name not in _listed(drop))
    if not chosen:
        raise ValueError(f"no feature is left besides the label {label!r}")
    if "" in chosen:
        raise ValueError(
            "a column has no name (a row index that was written with the table?); drop it:"
            " drop=['']"
        )
    return Table(columns, label, chosen, _name_of(source), positive)


def table_of(
    X: Any,
    y: Any,
    *,
    groups: Any = None,
    names: Sequence[str] | None = None,
    label: str = "label",
    positive: Any = None,
    source: str = "arrays",
) -> Table:
    """A table from inputs (rows, columns) and labels (rows,): numpy, torch, lists, or a data frame
    as X.

    `groups` is one protected column, then called "group", or a dict of them; they are no features.

    >>> table_of(
    ...     np.zeros((4, 2)), [0, 1, 0, 1], groups={"sex": [0, 0, 1, 1]}, names=["age", "hours"]
    ... ).features
    ('age', 'hours')
    """
    inputs = _columns_of_matrix(X, names)
    protected = (
        groups if isinstance(groups, Mapping) else {} if groups is None else {"group": groups}
    )
    parts = {
        **{name: column_of(values, name) for name, values in protected.items()},
        label: column_of(_flat(y), label),
    }
    for name in parts:
        if name in inputs:
            raise ValueError(f"{name!r} is a column of X already; give it another name")
    if label in protected:
        raise ValueError(
            f"{label!r} names the label and a protected column; give one of them another name"
        )
    return Table({**inputs, **parts}, label, tuple(inputs), source, positive)


def read_columns(
    source: Any,
    *,
    sep: str | None = None,
    missing: Sequence[str] = MISSING_MARKS,
    encoding: str | None = None,
    only: Sequence[str] | None = None,
    threads: bool = True,
) -> ColumnsRead:
    """The columns of a file, a data frame or a dict, by name. A column that is neither numbers nor
    text, or that occurs twice with different values, raises an error when you ask for it, not
    before. `encoding` is that of a CSV file; it is detected unless you name it, and a note says so
    if it is neither UTF-8 nor UTF-16. `only` names the columns of a file that you need: a large
    file is then streamed, and only these columns are held in memory.

    >>> read_columns({"age": [30, None], "job": ["nurse", "clerk"]})["age"]
    array([30., nan])
    """
    columns = ColumnsRead()
    if isinstance(source, str | os.PathLike):
        names, values, columns.notes, columns.header = columns_of_file(
            Path(source),
            sep,
            _listed(missing),
            encoding,
            None if only is None else _listed(only),
            threads,
        )
    elif isinstance(source, Mapping):
        names, values = list(source), list(source.values())
    else:
        names, values = _from_frame(source)
    for name, column in zip(map(str, names), values, strict=True):
        try:
            _add(columns, name, column_of(column, name), _name_of(source))
        except ColumnTypeError as error:
            columns.errors[name] = str(error)
    if columns.errors and not columns:
        raise ValueError("; ".join(columns.errors.values()))
    lengths = {name: len(column) for name, column in columns.items()}
    if not columns or not max(lengths.values()):
        raise ValueError(f"{_name_of(source)} has no {'rows' if columns else 'columns'}")
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


def _add(columns: ColumnsRead, name: str, column: NDArray[Any], where: str) -> None:
    """One more column; the same values under the same name are one column."""
    if name in columns.errors:
        return
    if name not in columns.keys():  # noqa: SIM118, `in` asks for the column
        columns[name] = column
        return
    earlier = columns[name]
    same = np.asarray(earlier == column, dtype=bool) | (is_missing(earlier) & is_missing(column))
    if earlier.dtype.kind != column.dtype.kind:
        same[:] = False
    if not same.all():
        del columns[name]
        values = f"{earlier[same.argmin()]!s} and {column[same.argmin()]!s}"
        columns.errors[name] = (
            f"{where} has the column {name!r} more than once, with different values, such as"
            f" {values}, in {marked_rows(~same)}; rename or remove one"
        )


# Values in Python ---------------------------------------------------------------------------------


def _from_frame(source: Any) -> tuple[list[str], list[Any]]:
    narwhals = need("narwhals", "data", "Reading a data frame")
    if hasattr(source, "collect"):
        raise ValueError(f"{_name_of(source)} is lazy; collect() it first")
    if not hasattr(source, "columns"):
        raise ValueError(f"cannot read {_name_of(source)}; give {READABLE}")
    # pandas allows names twice, narwhals does not
    if hasattr(source, "iloc") and not source.columns.is_unique:
        return source.columns.tolist(), [source.iloc[:, i] for i in range(source.shape[1])]
    try:
        frame = narwhals.from_native(source, eager_only=True)
    except TypeError as error:
        raise ValueError(f"cannot read {_name_of(source)}; give {READABLE}") from error
    return list(frame.columns), [series.to_native() for series in frame.iter_columns()]


def _columns_of_matrix(X: Any, names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    if isinstance(X, Mapping) or hasattr(X, "columns"):
        read = read_columns(X)
        for why in read.errors.values():
            raise ValueError(f"{why}; convert it, or drop it from X")
        columns = list(read.items())
    else:
        matrix = X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)
        if matrix.ndim != 2:
            raise ValueError(f"X has shape {matrix.shape}; give (rows, columns)")
        columns = [(f"x{j}", column_of(matrix[:, j], f"x{j}")) for j in range(matrix.shape[1])]
    if names is None:
        return dict(columns)
    if len(names) != len(columns):
        raise ValueError(f"X has {len(columns)} columns but {len(names)} names")
    twice = [name for name, count in Counter(map(str, names)).items() if count > 1]
    if twice:
        raise ValueError(
            f"X has the column {', '.join(map(repr, twice))} more than once; rename or remove one"
        )
    return {name: column for name, (_, column) in zip(names, columns, strict=True)}


def _flat(y: Any) -> Any:
    """Labels of shape (rows, 1) as a vector."""
    return (
        y.reshape(-1)
        if isinstance(y, Tensor | np.ndarray) and y.ndim == 2 and y.shape[1] == 1
        else y
    )


# Sentences ----------------------------------------------------------------------------------------


def _name_of(source: Any) -> str:
    if isinstance(source, str | os.PathLike):
        return Path(source).name
    if isinstance(source, Mapping):
        return "a dict of columns"
    return f"a {type(source).__module__.partition('.')[0]} {type(source).__name__}"


def _listed(names: Sequence[str]) -> tuple[str, ...]:
    """One name, or several."""
    return (names,) if isinstance(names, str) else tuple(names)
