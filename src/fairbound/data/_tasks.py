"""The five prediction tasks of Folktables on the American Community Survey, as data.

    keep the rows where every filter holds;  label = rule(label column);  group = RAC1P;
            empty fields get a number

Reference: Ding, Hardt, Miller and Schmidt, "Retiring Adult: New Datasets for Fair Machine
Learning", NeurIPS 2021. Rows, columns and labels are those of the package folktables 0.0.12, which
the tests compare with, value for value.

Differs from the paper, as the package does: `Employment` keeps all ages (the paper: between 16 and
90).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound._utils.sentences import did_you_mean
from fairbound.columns._column import Column
from fairbound.columns._read import read_columns
from fairbound.columns._rows import holds, names_in
from fairbound.data._table import Table

# The fill of empty fields. Folktables means to write -1 and writes 0: it calls `np.nan_to_num(x,
# -1)`, whose second argument is `copy`, so that NaN becomes the default 0. All published results
# have the 0 in them.
HISTORICAL = 0


@dataclass(frozen=True)
class CensusTask:
    """What to predict, from which columns, on which rows."""

    name: str
    label: str  # the name of the label's column in the table
    positive: str  # when the label is 1; like `filters` a condition of `fairbound.columns._rows`
    filters: str  # of the rows; empty: all
    features: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column of the person file that the task reads."""
        named = (*self.features, *names_in(self.filters), *names_in(self.positive))
        return tuple(dict.fromkeys(named))


_TASKS = (  # name, label, when it is 1, which rows, features
    (
        "Income",
        "PINCP_GT_50K",
        "PINCP > 50_000",
        "AGEP > 16 and PINCP > 100 and WKHP > 0 and PWGTP >= 1",
        "AGEP COW SCHL MAR OCCP POBP RELP WKHP SEX RAC1P",
    ),
    (
        "PublicCoverage",
        "PUBCOV_IS_1",
        "PUBCOV == 1",
        "AGEP < 65 and PINCP <= 30_000",
        "AGEP SCHL MAR SEX DIS ESP CIT MIG MIL ANC NATIVITY DEAR DEYE DREM PINCP ESR ST FER RAC1P",
    ),
    (
        "Mobility",
        "MIG_IS_1",
        "MIG == 1",
        "AGEP > 18 and AGEP < 35",
        (
            "AGEP SCHL MAR SEX DIS ESP CIT MIL ANC NATIVITY RELP DEAR DEYE DREM RAC1P GCL COW ESR"
            " WKHP JWMNP PINCP"
        ),
    ),
    (
        "Employment",
        "ESR_IS_1",
        "ESR == 1",
        "",
        "AGEP SCHL MAR RELP DIS ESP CIT MIG MIL ANC NATIVITY DEAR DEYE DREM SEX RAC1P",
    ),
    (
        "TravelTime",
        "JWMNP_GT_20",
        "JWMNP > 20",
        "AGEP > 16 and PWGTP >= 1 and ESR == 1",
        "AGEP SCHL MAR SEX DIS ESP MIG RELP RAC1P PUMA ST CIT OCCP JWTR POWPUMA POVPIP",
    ),
)
TASKS: Mapping[str, CensusTask] = MappingProxyType(
    {
        name: CensusTask(name, label, positive, filters, tuple(features.split()))
        for name, label, positive, filters, features in _TASKS
    }
)
# besides the features, where the rows have them: the state, and the survey weight
CARRIED = ("ST", "PWGTP")


def task_of(name: str) -> CensusTask:
    """The task of that name.

    >>> task_of("Income").features[:3]
    ('AGEP', 'COW', 'SCHL')
    """
    if name not in TASKS:
        raise ValueError(f"no task is called {name!r}; {did_you_mean(name, TASKS)}")
    return TASKS[name]


def apply(task: str, rows: Any, missing: int | None = HISTORICAL, source: str = "rows") -> Table:
    """Make the task's table from rows in the form of the person file.

    Args:
        task: its name.
        rows: a mapping of columns, or a data frame.
        missing: what is written where a feature's field was empty: 0 as in published results, -1 as
            Folktables intends, None leaves NaN.
        source: what the table is called in reports.

    >>> rows = {
    ...     "AGEP": [30, 12],
    ...     "PINCP": [60_000, None],
    ...     "WKHP": [40, None],
    ...     "PWGTP": [9, 9],
    ...     "COW": [1, None],
    ... }
    >>> rows |= dict.fromkeys(["SCHL", "MAR", "OCCP", "POBP", "RELP", "SEX", "RAC1P"], [1, 1])
    >>> table = apply("Income", rows)
    >>> table.rows, table.columns["PINCP_GT_50K"]
    (1, array([ True]))
    """
    wanted, persons = task_of(task), read_columns(rows)
    refuse_absent(wanted.columns, persons, wanted, source)
    carried = [name for name in CARRIED if name in persons]
    columns = {
        name: Column(name, persons[name]).numbers()
        for name in dict.fromkeys((*wanted.columns, *carried))
    }
    if wanted.filters:
        meets = holds(wanted.filters, columns)
        columns = {name: column[meets] for name, column in columns.items()}
    table = {name: fill(columns[name], missing) for name in (*wanted.features, *carried)}
    table[wanted.label] = holds(wanted.positive, columns)
    return Table(table, wanted.label, wanted.features, source, missing=missing)


def refuse_absent(
    needed: Iterable[str], names: Iterable[str], task: CensusTask, where: Any
) -> None:
    """Refuse rows without needed columns, and name the closest of theirs."""
    described = []
    for absent in needed:
        if absent not in names:
            close = get_close_matches(absent, list(names), n=2)
            described.append(absent + (f" (closest: {', '.join(close)})" if close else ""))
    if described:
        raise ValueError(f"{where} lacks columns of {task.name}: {', '.join(described)}")


def fill(column: NDArray[np.float64], missing: int | None) -> NDArray[Any]:
    """Empty fields filled; whole numbers as integers, where nothing is missing.

    >>> fill(np.array([1.0, np.nan]), -1)
    array([ 1, -1])
    """
    filled = column if missing is None else np.where(np.isnan(column), missing, column)
    # NaN is unequal to itself
    whole = np.array_equal(filled, np.rint(filled))
    return filled.astype(np.int64) if whole else filled
