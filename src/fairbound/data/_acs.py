"""A task's table from files of the American Community Survey, raw person files or extracts.

`fairbound.data._acs_files` says which there are, `fairbound.data._download` gets more.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from fairbound._utils.optional import need
from fairbound.columns._read import read_columns
from fairbound.data._acs_files import (
    STATE_OF,
    STATES,
    SurveyFile,
    available,
    file_of,
    identify,
    source_name,
    states_of,
    survey_year,
)
from fairbound.data._table import Table
from fairbound.data._tasks import (
    CARRIED,
    HISTORICAL,
    TASKS,
    CensusTask,
    apply,
    describe_absent,
    fill,
    numbers,
    task_of,
)

# Columns that later files call and code otherwise: the newer name, and newer code -> code of 2018
# (empty: the same). Same-sex and opposite-sex couples were one code until 2018; roomers and
# boarders (11) have none any more.
NEWER: Mapping[str, tuple[str, Mapping[int, int]]] = MappingProxyType(
    {
        "RELP": (  # from 2019
            "RELSHIPP",
            {
                20: 0,
                21: 1,
                22: 13,
                23: 1,
                24: 13,
                25: 2,
                26: 3,
                27: 4,
                28: 5,
                29: 6,
                30: 7,
                31: 8,
                32: 9,
                33: 10,
                34: 12,
                35: 14,
                36: 15,
                37: 16,
                38: 17,
            },
        ),
        # from 2019
        "JWTR": (
            "JWTRNS",
            {1: 1, 2: 2, 3: 4, 4: 5, 5: 3, 6: 6, 7: 7, 8: 8, 9: 9, 10: 10, 11: 11, 12: 12},
        ),
        "ST": ("STATE", {}),  # from 2023
    }
)


def load(
    states: Sequence[str],
    task: str | CensusTask = "Income",
    year: int = 2018,
    horizon: str = "1-Year",
    folder: str | Path | None = None,
    missing: int | None = HISTORICAL,
) -> Table:
    """The rows of a task from the first file found for each state, states in the order given.

    Where `folder` is given, only that is searched. `missing` fills empty fields: 0 as in published
    results, -1, or None for NaN. Files from 2019 on have their RELSHIPP and JWTRNS translated to
    RELP and JWTR as coded in 2018.
    """
    task, year = task_of(task), survey_year(year, horizon)
    files = available(folder)
    wanted = states_of(states, [file.state for file in files])
    parts = [
        _read(file_of(state, task, year, horizon, files, folder), task, year, horizon, missing)
        for state in wanted
    ]
    _refuse_overlap(wanted, parts)
    shared = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in shared}
    source = source_name(wanted, task.name, year, horizon)
    return Table(columns, task.label, task.features, source, missing=missing)


def _read(
    file: SurveyFile, task: CensusTask, year: int, horizon: str, missing: int | None
) -> Table:
    if file.form == "parquet":
        table = _extract(file, task, missing)
    else:
        table = apply(task, _raw_columns(file, task, year, horizon), missing, f"acs:{file.state}")
    if file.state in STATES and "ST" in table.columns:
        others = sorted(set(np.unique(table.columns["ST"]).tolist()) - {STATES[file.state]})
        if others:
            raise ValueError(
                f"{file.path} should hold {file.state} only (ST {STATES[file.state]}), it also has"
                f" ST {others[0]}"
            )
    return table


def _refuse_overlap(names: Sequence[str], parts: Sequence[Table]) -> None:
    holders: dict[int, str] = {}
    for name, part in zip(names, parts, strict=True):
        for fips in np.unique(part.columns.get("ST", np.zeros(0, dtype=np.int64))).tolist():
            if fips in holders:
                raise ValueError(
                    f"{holders[fips]} and {name} both hold rows of {STATE_OF.get(fips, fips)};"
                    " drop one"
                )
            holders[fips] = name


def _extract(file: SurveyFile, task: CensusTask, missing: int | None) -> Table:
    parquet = need("pyarrow.parquet", "data", f"Reading {file.path.name}")
    with _reading(file.path):
        names = parquet.read_schema(file.path).names
    wanted = dict.fromkeys(
        (*task.features, task.group, *(name for name in CARRIED if name in names), task.label)
    )
    absent = [name for name in wanted if name not in names]
    if absent:
        raise ValueError(
            f"{file.path} lacks columns of {task.name}: {describe_absent(absent, names)}"
        )
    with _reading(file.path):
        state_only = [("ST", "==", STATES[file.state])] if file.several else None
        frame = parquet.read_table(file.path, columns=list(wanted), filters=state_only)
    if frame.num_rows == 0:
        raise ValueError(
            f"{file.path} has no rows of {file.state}; get them with `fairbound data fetch"
            f" {file.state}`"
        )
    columns = {
        name: fill(numbers(name, column), missing) for name, column in read_columns(frame).items()
    }
    columns[task.label] = columns[task.label] == 1
    return Table(columns, task.label, task.features, f"acs:{file.state}", missing=missing)


# Raw person files ---------------------------------------------------------------------------------


def _raw_columns(
    file: SurveyFile, task: CensusTask, year: int, horizon: str
) -> dict[str, NDArray[Any]]:
    """The task's columns of a person file under their names of 2018, NaN where a field is empty."""
    pandas = need("pandas", "data", f"Reading {file.path.name}")
    source = _source_columns(file.path, file.state, year, horizon, task)
    with _reading(file.path), _opened(file.path, file.state) as lines:
        # Files up to 2016 pad empty fields with spaces.
        frame = pandas.read_csv(
            lines, usecols=list(source.values()), dtype=np.float64, skipinitialspace=True
        )
    columns = {name: frame[name_in_file].to_numpy() for name, name_in_file in source.items()}
    for name, name_in_file in source.items():
        if name_in_file != name:
            columns[name] = _translated(file.path, name_in_file, columns[name], NEWER[name][1])
    return columns


def check_raw(
    path: Path, state: str, year: int, horizon: str, task: CensusTask = TASKS["Income"]
) -> None:
    """Refuse, in a sentence, a raw file that is damaged, of another survey, or without the task's
    columns."""
    with _reading(path), _opened(path, state) as lines:
        # to the end: the checksums of a zip or gzip file are compared there
        while lines.read(1 << 20):
            pass
    _source_columns(path, state, year, horizon, task)


def _source_columns(
    path: Path, state: str, year: int, horizon: str, task: CensusTask
) -> dict[str, str]:
    """Name in 2018 -> name in this file, of the columns that the task needs or carries."""
    with _reading(path), _opened(path, state) as lines:
        reader = csv.reader(
            io.TextIOWrapper(lines, encoding="utf-8-sig", errors="replace"), skipinitialspace=True
        )
        header, first = next(reader, []), next(reader, [])
    _refuse_other_survey(path, header, first, year, horizon)
    _refuse_cut_short(path, header)
    source = {}
    for name in dict.fromkeys((*task.columns, *CARRIED)):
        newer = NEWER[name][0] if name in NEWER else name
        if name in header or newer in header:
            source[name] = name if name in header else newer
    absent = [name for name in task.columns if name not in source]
    if len(absent) == len(task.columns):
        raise ValueError(
            f"{path} is not a PUMS person file: it begins with {','.join(header)[:60]!r}"
        )
    if absent:
        raise ValueError(f"{path} lacks columns of {task.name}: {describe_absent(absent, header)}")
    return source


def _translated(
    path: Path, name: str, column: NDArray[Any], codes: Mapping[int, int]
) -> NDArray[Any]:
    if not codes:
        return column
    old = np.full(len(column), np.nan)
    for newer, code in codes.items():
        old[column == newer] = code
    unknown = np.isnan(old) & ~np.isnan(column)
    if unknown.any():
        raise ValueError(f"{path} has {name} = {column[unknown.argmax()]:g}, an unknown code")
    return old


@contextmanager
def _opened(path: Path, state: str) -> Iterator[IO[bytes]]:
    """The bytes of the csv: plain, gzipped, or the state's person file within a zip."""
    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as archive:
            name = person_file(archive, state)
            if name is None:
                inside = ", ".join(archive.namelist()[:5])
                raise FileNotFoundError(
                    f"there is no person file of {state} in {path}, only {inside}"
                )
            with archive.open(name) as lines:
                yield lines
    else:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as lines:
            yield cast(IO[bytes], lines)


def person_file(archive: zipfile.ZipFile, state: str) -> str | None:
    """The name of the state's person file within a zip, in whatever folder and case; None: it is
    not there."""
    for name in archive.namelist():
        inside = identify(Path(name), None, None)
        if inside and inside.form == "csv" and inside.state == state:
            return name
    return None


def _refuse_other_survey(
    path: Path, header: Sequence[str], first: Sequence[str], year: int, horizon: str
) -> None:
    """From 2017 on, a serial number begins with the year of the interview: a misplaced file is
    noticed."""
    serial = dict(zip(header, first, strict=False)).get("SERIALNO", "")
    interview = int(serial[:4]) if re.fullmatch(r"20\d\d(GQ|HU|\d\d)\d{7}", serial) else year
    if not year - (4 if horizon == "5-Year" else 0) <= interview <= year:
        raise ValueError(
            f"{path} is of {interview} (its first SERIALNO is {serial}), not of {year} {horizon};"
            f" put it into the folder {interview}/1-Year or ask for year={interview}"
        )


def _refuse_cut_short(path: Path, header: Sequence[str]) -> None:
    """A plain csv has no checksum, but one that breaks off within a row is noticed (a reader would
    take the rest of the row for empty fields)."""
    if path.suffix.lower() != ".csv":
        return
    with path.open("rb") as lines:
        lines.seek(max(0, path.stat().st_size - 100_000))  # far longer than a row
        last = lines.read().rstrip(b"\r\n").rsplit(b"\n", 1)[-1]
    fields = last.count(b",") + 1
    if fields != len(header):
        raise ValueError(
            f"{path} breaks off: its last row has {fields} fields of {len(header)}; delete the file"
            " and fetch it again"
        )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever a reader says about a damaged file, as one sentence with its name."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    # a zip with a password, or compressed in a way that Python does not support
    except RuntimeError as error:
        raise ValueError(
            f"{path} cannot be unpacked ({error}); put the csv in it, unpacked, into its place"
        ) from error
    except (ValueError, EOFError, OSError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} cannot be read, it is truncated or damaged ({error}); delete and fetch it"
        ) from error
