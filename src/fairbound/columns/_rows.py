"""Conditions that choose the rows of a table, such as "race in ('A', 'B') and age >= 18": those of
pandas' `query`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound._utils.optional import need
from fairbound.columns._column import column_named, is_missing

_FORM = (
    "write it as in \"race in ('A', 'B') and age >= 18\", with names that hold spaces between"
    " backticks"
)


def names_in(condition: str) -> list[str]:
    """The words of a condition that may be columns.

    >>> names_in("`years of age` >= 18 and race != 'B'")
    ['years of age', 'race']
    """
    unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", " ", condition)
    names = [quoted or name for quoted, name in re.findall(r"`([^`]+)`|\b([^\W\d]\w*)", unquoted)]
    return [name for name in names if name not in ("and", "or", "not", "in", "True", "False")]


def rows_where(condition: str, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """(rows,) where the condition holds, which must be somewhere.

    >>> rows_where(
    ...     "sex == 'f' and 18 <= age < 65",
    ...     {"sex": np.array(["f", "m"]), "age": np.array([30, 40])},
    ... )
    array([ True, False])
    """
    chosen = holds(condition, columns)
    if not chosen.any():
        names = ", ".join(names_in(condition))
        raise ValueError(f"no row meets the condition {condition!r}; look at the values of {names}")
    return chosen


def holds(condition: str, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """(rows,) where the condition holds; it does not in a row that lacks one of its values."""
    values = {name: column_named(name, columns) for name in names_in(condition)}
    if re.search(r"[^=!<>]=[^=]", condition):
        raise ValueError(f"the condition {condition!r} has one =; equality is written ==")
    frame = need("pandas", "data", "A condition").DataFrame(values)
    try:
        rows = np.asarray(frame.eval(condition, engine="python"))
    except (SyntaxError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        # a number is compared with text
        why = f" ({error})" if isinstance(error, TypeError) else ""
        raise ValueError(f"the condition {condition!r} cannot be read{why}; {_FORM}") from error
    if rows.dtype != bool or not values:
        raise ValueError(f"the condition {condition!r} compares nothing; {_FORM}")
    missing = np.logical_or.reduce([is_missing(column) for column in values.values()])
    return np.asarray(rows & ~missing)
