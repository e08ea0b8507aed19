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
    dropped = one_or_several(drop)
    for name in dropped:
        if name not in columns.errors:
            column_named(name, columns)
    for name, why in columns.errors.items():
        if features is None and name not in dropped:
            raise ValueError(f"{why}; convert it, or drop it: drop=[{name!r}]")
    others = [name for name in columns if name != label]
    listed = others if features is None else one_or_several(features)
    chosen = tuple(name for name in listed if name not in dropped)
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
    protected = groups if isinstance(groups, Mapping) else {"group": groups}
    if groups is None:
        protected = {}
    if isinstance(y, Tensor | np.ndarray) and tuple(y.shape[1:]) == (1,):
        y = y.reshape(-1)
    pairs = [*inputs, *protected.items(), (label, y)]
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(
            f"{', '.join(map(repr, twice))} names more than one column of X, the protected ones"
            " and the label; rename or remove one"
        )
    columns = {name: Column.of(values, name).values for name, values in pairs}
    return Table(columns, label, tuple(name for name, _ in inputs), source, positive)


def _columns_of_matrix(X: Any, names: Sequence[str] | None) -> list[tuple[str, NDArray[Any]]]:
    if isinstance(X, Mapping) or hasattr(X, "columns"):
        read = read_columns(X)
        for why in read.errors.values():
            raise ValueError(f"{why}; convert it, or drop it from X")
        columns = list(read.items())
    else:
        matrix = X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)
        if matrix.ndim != 2:
            raise ValueError(f"X has shape {matrix.shape}; give (rows, columns)")
        columns = [(f"x{j}", column) for j, column in enumerate(matrix.T)]
    if names is None:
        return columns
    if len(names) != len(columns):
        raise ValueError(f"X has {len(columns)} columns but {len(names)} names")
    return [(name, column) for name, (_, column) in zip(names, columns, strict=True)]
