"""Names of data, the same everywhere: `acs:OK`, `synthetic:OK`, or a file.

acs:STATES[:TASK[:YEAR[:HORIZON]]]   acs:OK, acs:OK+VA, acs:CA:Employment, acs:OK:Income:2018:5-Year
synthetic:STATE                      synthetic:OK, synthetic:VA
anything else                        the path of a CSV or parquet file; needs a label

A new kind of data is one entry of SOURCES; its names then work in Python, experiment files and on
the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairbound.data import _acs as acs
from fairbound.data import _acs_files as acs_files
from fairbound.data import _synthetic as synthetic
from fairbound.data._readers import read_table
from fairbound.data._table import Table, is_census
from fairbound.data._tasks import HISTORICAL, TASKS

FORM = "acs:STATES[:TASK[:YEAR[:HORIZON]]]"


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
    """Load the table of that name.

    Args:
        source: `acs:OK`, `synthetic:OK`, or the path of a CSV or parquet file.
        label: of a file: the column to predict.
        features: of a file: the columns that a model may see; all but the label if not given.
        positive: of a file: the label's value that counts as 1; the evident one if not given.
        folder: of census data: where the files are; $FAIRBOUND_DATA and the cache if not given.
        missing: of census data: the number written into empty fields; None leaves NaN.
        seed: of synthetic data.

    >>> load("synthetic:OK").rows
    17917
    """
    kind, colon, rest = source.partition(":")
    if not colon or kind.lower() not in SOURCES:
        if label is None:
            raise ValueError(
                f"{source} is taken for a file, so the column to predict must be named: `label`;"
                f" other data are called {FORM} or synthetic:STATE"
            )
        return read_table(source, label=label, features=features, positive=positive)
    if label is not None or features is not None:
        raise ValueError(
            f"{source} is {'census data' if is_census(source) else 'not a file'}: it has its own"
            " label"
        )
    return SOURCES[kind.lower()](rest, folder=folder, missing=missing, seed=seed)


def _load_acs(rest: str, *, folder: str | Path | None, missing: int | None, **unused: Any) -> Table:
    states, *more = rest.split(":")
    if not states or len(more) > 3:
        raise ValueError(
            f"census data are named {FORM}, such as acs:OK or acs:OK+VA, got 'acs:{rest}'"
        )
    task, year, horizon = [*more, "", "", ""][:3]
    survey = year or acs_files.USUAL_YEAR, horizon or acs_files.HORIZONS[0]
    return acs.load(states.split("+"), task or "Income", *survey, folder, missing)


def _load_synthetic(rest: str, *, seed: int, **unused: Any) -> Table:
    state, _, task = rest.partition(":")
    if ":" in task:
        raise ValueError(
            "synthetic data are named synthetic:STATE, such as synthetic:OK, got"
            f" 'synthetic:{rest}'"
        )
    return synthetic.load(state, seed, task or "Income")


# kind of source -> its loader: what follows the colon, and the settings of `load`, of which it
# takes what it needs
SOURCES: dict[str, Callable[..., Table]] = {"acs": _load_acs, "synthetic": _load_synthetic}


def best(state: str, folder: str | Path | None = None) -> str:
    """`acs:STATE` if its real data are found, else `synthetic:STATE`; if you name a folder, it must
    hold them."""
    files = acs_files.available(folder)
    (state,) = acs_files.states_of([state], [file.state for file in files])
    usual = acs_files.USUAL_YEAR, acs_files.HORIZONS[0]
    try:
        acs_files.file_of(state, TASKS["Income"], *usual, files, folder)
    except FileNotFoundError:
        # generated data in place of those that somebody named would be a surprise
        if folder is not None or state not in synthetic.STATES:
            raise
        return f"synthetic:{state}"
    return f"acs:{state}"
