"""A table from a file, a data frame, a dict of columns, or arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fairbound.columns._column import Column, column_named
from fairbound.columns._read import MISSING_MARKS, name_of, one_or_several, read_columns
from fairbound.data._table import Table


def read_table(
    source: Any,
    *,
    label: str,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    sep: str | None = None,
    positive: Any = None,
    missing: Sequence[str] = MISSING_MARKS,
    decimal: str | None = None,
) -> Table:
    """Read a table from a file, a data frame or a dict of columns.

    Columns that are no features stay in the table, e.g. as protected attributes.

    Args:
        source: the path of a CSV or parquet file, a data frame, or a mapping of names to columns.
        label: the column to predict.
        features: the columns that a model may see; all but the label and `drop` if not given.
        drop: columns that are no features.
        sep: what separates the fields of a CSV file; detected if not given.
        positive: the label's value that counts as 1; the evident one if not given.
        missing: the words that mark a missing value in a CSV file.
        decimal: "." or ",", what begins the decimals in a CSV file; detected if not given.

    >>> table = read_table(
    ...     {"age": [30, 40], "id": [7, 8], "rich": ["no", "yes"]}, label="rich", drop=["id"]
    ... )
    >>> table.features, table.rows
    (('age',), 2)
    """
    columns = read_columns(source, sep=sep, missing=missing, decimal=decimal)
    for name in (
        label,
        *one_or_several(features or ()),
        *(name for name in one_or_several(drop) if name not in columns.errors),
    ):
        column_named(name, columns)
    for name, why in columns.errors.items():
        if features is None and name not in one_or_several(drop):
            raise ValueError(f"{why}; convert it, or drop it: drop=[{name!r}]")
    listed = (
        [name for name in columns if name != label]
        if features is None
        else one_or_several(features)
    )
    chosen = tuple(name for name in listed if name not in one_or_several(drop))
    if not chosen:
        raise ValueError(f"no feature is left besides the label {label!r}")
    if "" in chosen:
        raise ValueError(
            "a column has no name (a row index that was written with the table?); drop it:"
            " drop=['']"
        )
    return Table(columns, label, chosen, name_of(source), positive)


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
    """Make a table from inputs and labels.

    Args:
        X: (rows, columns) an array, a tensor, lists, or a data frame.
        y: (rows,) labels.
        groups: (rows,) a protected column, then called "group", or several by name; no features.
        names: of the columns of X; those of the frame, or x0, x1, ... if not given.
        label: the name of the label's column.
        positive: the label's value that counts as 1; the evident one if not given.
        source: what the table is called in reports.

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
        **{name: Column.of(values, name).values for name, values in protected.items()},
        label: Column.of(_flat(y), label).values,
    }
    for name in parts:
        if name in inputs:
            raise ValueError(f"{name!r} is a column of X already; give it another name")
    if label in protected:
        raise ValueError(
            f"{label!r} names the label and a protected column; give one of them another name"
        )
    return Table({**inputs, **parts}, label, tuple(inputs), source, positive)


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
        columns = [
            (f"x{j}", Column.of(matrix[:, j], f"x{j}").values) for j in range(matrix.shape[1])
        ]
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
