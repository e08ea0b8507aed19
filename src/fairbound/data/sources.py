"""One way to name data everywhere: `acs:OK`, `simulated:OK`, or a file.

acs:STATES[:TASK[:YEAR]]   acs:OK, acs:OK+VA, acs:CA:Employment, acs:OK:Income:2017
simulated:STATE            simulated:OK, simulated:VA
anything else              a CSV or parquet file of the user's own; needs a label

RACE                       the levels of a column (census: those of the code book)
AGE:25:45:65               a number cut into bands at these edges
RACE=1                     one level against all others
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairbound.data import acs, acs_files, simulated
from fairbound.data.reading import read_table
from fairbound.data.table import CENSUS, Table
from fairbound.data.tasks import HISTORICAL, TASKS


def load(
    source: str,
    *,
    label: str | None = None,
    features: Sequence[str] | None = None,
    positive: Any = None,
    folder: str | Path | None = None,
    missing: int | None = HISTORICAL,
    seed: int = 0,
) -> Table:
    """The table of that name. `label`, `features` and `positive` are for files, `folder` and `missing` for census data,
    `seed` for simulated ones.

    >>> load("simulated:OK").rows
    17917
    """
    kind, _, rest = source.partition(":")
    if kind not in CENSUS:
        if label is None:
            raise ValueError(f"{source} is a file, so the column to predict must be named: label=... (--label)")
        return read_table(source, label=label, features=features, positive=positive)
    if label is not None or features is not None:
        raise ValueError(f"{source} is census data: its label and features are those of its task")
    if kind == "simulated":
        return simulated.load(rest, seed)
    states, task, year = _acs_parts(source, rest)
    return acs.load(states, task, year, folder=folder, missing=missing)


def best(state: str, folder: str | Path | None = None) -> str:
    """`acs:STATE` where its real data are found, else `simulated:STATE`."""
    found = any(found.serves(state, TASKS["Income"], 2018, "1-Year") for found in acs_files.available(folder))
    return f"acs:{state}" if found else f"simulated:{state}"


def _acs_parts(source: str, rest: str) -> tuple[list[str], str, int]:
    states, task, year, *more = [*rest.split(":"), "", ""][: max(3, rest.count(":") + 1)]
    if not states or any(more):
        raise ValueError(f"census data are named acs:STATES[:TASK[:YEAR]], such as acs:OK or acs:OK+VA, got {source!r}")
    if year and not year.isdigit():
        raise ValueError(f"{year!r} in {source!r} is no year; census data are named acs:STATES[:TASK[:YEAR]]")
    return states.split("+"), task or "Income", int(year or 2018)
