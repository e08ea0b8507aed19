"""A task's table from files of the American Community Survey, raw person files or extracts.

`fairbound.data.acs_files` says which there are, `fairbound.data.download` gets more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairbound._utils.optional import need
from fairbound.data.acs_files import STATE_OF, STATES, Found, available, file_of, source_name, states_of, survey_year
from fairbound.data.columns import from_arrow
from fairbound.data.pums import raw_columns, reading
from fairbound.data.table import Table
from fairbound.data.tasks import CARRIED, HISTORICAL, Task, apply, fill, numbers, said_absent, task_of


def load(
    states: Sequence[str],
    task: str | Task = "Income",
    year: int = 2018,
    horizon: str = "1-Year",
    folder: str | Path | None = None,
    missing: int | None = HISTORICAL,
) -> Table:
    """The rows of a task from the first file found for each state, states in the order given.

    Where `folder` is given, only that is looked in. `missing` fills empty fields: 0 as in published results, -1, or
    None for NaN. Files from 2019 on have their RELSHIPP and JWTRNS translated to RELP and JWTR as coded in 2018.
    """
    task, year = task_of(task), survey_year(year, horizon)
    there = available(folder)
    wanted = states_of(states, [found.state for found in there])
    parts = [
        _read(file_of(state, task, year, horizon, there, folder), task, year, horizon, missing) for state in wanted
    ]
    _refuse_overlap(wanted, parts)
    shared = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in shared}
    source = source_name(wanted, task.name, year, horizon)
    return Table(columns, task.label, task.features, source, missing=missing)


def _read(found: Found, task: Task, year: int, horizon: str, missing: int | None) -> Table:
    if found.form == "parquet":
        table = _extract(found, task, missing)
    else:
        table = apply(task, raw_columns(found, task, year, horizon), missing, f"acs:{found.state}")
    if table.rows == 0:
        raise ValueError(f"{found.path} has no rows for {task.name}")
    if found.state in STATES and "ST" in table.columns:
        others = sorted(set(np.unique(table.columns["ST"]).tolist()) - {STATES[found.state]})
        if others:
            raise ValueError(
                f"{found.path} should hold {found.state} only (ST {STATES[found.state]}), it also has ST {others[0]}"
            )
    return table


def _extract(found: Found, task: Task, missing: int | None) -> Table:
    parquet = need("pyarrow.parquet", "data", f"Reading {found.path.name}")
    with reading(found.path):
        names = parquet.read_schema(found.path).names
    wanted = dict.fromkeys((*task.features, task.group, *(name for name in CARRIED if name in names), task.label))
    absent = [name for name in wanted if name not in names]
    if absent:
        raise ValueError(f"{found.path} lacks columns of {task.name}: {said_absent(absent, names)}")
    with reading(found.path):
        frame = parquet.read_table(found.path, columns=list(wanted))
    columns = {name: fill(numbers(name, from_arrow(frame.column(name))), missing) for name in wanted}
    columns[task.label] = columns[task.label] == 1
    return Table(columns, task.label, task.features, f"acs:{found.state}", missing=missing)


def _refuse_overlap(names: Sequence[str], parts: Sequence[Table]) -> None:
    seen: dict[int, str] = {}
    for name, part in zip(names, parts, strict=True):
        for fips in np.unique(part.columns.get("ST", np.zeros(0, dtype=np.int64))).tolist():
            if fips in seen:
                raise ValueError(f"{seen[fips]} and {name} both hold rows of {STATE_OF.get(fips, fips)}; leave one out")
            seen[fips] = name
