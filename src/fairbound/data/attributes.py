"""One way to name protected attributes everywhere.

RACE                       the levels of a column (census: those of the code book)
AGE:25:45:65               a number cut into bands at these edges
RACE=1                     one level against all others
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound.data import codebook
from fairbound.fairness.groups import Against, Attribute, Banded, Coded, is_missing, no_column

Columns = Mapping[str, NDArray[Any]]  # name -> (rows,)
MOST_LEVELS = 50  # different numbers in a column of the user's own, above which bands have to be given


def attribute(spec: str, columns: Columns, census: bool = False) -> Attribute:
    """The protected attribute that a specification names, for the columns at hand.

    >>> attribute("AGE:25:65", {"AGE": np.array([30, 70])}).labels
    ('< 25', '25 to < 65', '>= 65')
    >>> attribute("sex", {"sex": np.array(["f", "m"])}).labels
    ('f', 'm')
    """
    name, edges, level = _parsed(spec, columns)
    if name not in columns:
        raise ValueError(no_column(name, columns))
    column = columns[name]
    coded = census and name in codebook.variables()
    if edges:
        return codebook.attribute(name, edges) if coded else Banded(name, edges)
    if level is not None:
        return _against(name, level, column, coded)
    if coded:
        return codebook.attribute(name)
    _refuse_many_numbers(name, column)
    return Coded.of(name, column)


def attributes(specs: str | Sequence[str], columns: Columns, census: bool = False) -> list[Attribute]:
    """Several, given as a list or separated by commas."""
    listed = specs.split(",") if isinstance(specs, str) else list(specs)
    named = [spec.strip() for spec in listed if spec.strip()]
    if not named:
        raise ValueError("name at least one protected column")
    return [attribute(spec, columns, census) for spec in named]


def _parsed(spec: str, columns: Columns) -> tuple[str, tuple[float, ...], str | None]:
    """Name, edges, level; a column whose name itself holds ':' or '=' is found first."""
    if spec in columns:
        return spec, (), None
    if "=" in spec:
        name, _, level = spec.partition("=")
        return name, (), level
    name, *edges = spec.split(":")
    try:
        return name, tuple(float(edge) for edge in edges), None
    except ValueError as error:
        raise ValueError(f"{spec!r}: the edges after ':' must be numbers, as in AGE:25:45:65") from error


def _against(name: str, level: str, column: NDArray[Any], coded: bool) -> Against:
    numeric = column.dtype.kind in "iufb"
    try:
        code: Any = (float(level) if "." in level else int(level)) if numeric else level
    except ValueError as error:
        raise ValueError(f"{name} holds numbers, so {name}={level} matches none of them") from error
    label = codebook.levels(name).get(code, level) if coded else f"{name}={level}"
    return Against(name, code, (label, f"not {label}"))


def _refuse_many_numbers(name: str, column: NDArray[Any]) -> None:
    if column.dtype.kind not in "iuf":
        return
    different = len(np.unique(column[~is_missing(column)]))
    if different > MOST_LEVELS:
        raise ValueError(
            f"{name} has {different} different numbers; cut it into bands by giving edges, as in {name}:25:45:65"
        )
