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
from fairbound.columns._column import Column
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
    fill,
    refuse_absent,
    task_of,
)

# Columns that later files call and code otherwise: the newer name, and newer code -> code of 2018
# (empty: the same). Same-sex and opposite-sex couples were one code until 2018; roomers and
# boarders (11) have none any more.
RELATIONSHIPS = (0, 1, 13, 1, 13, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 17)
TRANSPORT = (1, 2, 4, 5, 3, 6, 7, 8, 9, 10, 11, 12)
NEWER: Mapping[str, tuple[str, Mapping[int, int]]] = MappingProxyType(
    {
        "RELP": ("RELSHIPP", dict(enumerate(RELATIONSHIPS, start=20))),  # from 2019
        "JWTR": ("JWTRNS", dict(enumerate(TRANSPORT, start=1))),  # from 2019
        "ST": ("STATE", {}),  # from 2023
    }
)


def load(
    states: Sequence[str],
    task: str = "Income",
    year: int | str = 2018,
    horizon: str = "1-Year",
    folder: str | Path | None = None,
    missing: int | None = HISTORICAL,
) -> Table:
    """The rows of a task from the first file found for each state, states in the order given.

    Where `folder` is given, only that is searched. `missing` fills empty fields: 0 as in published
    results, -1, or None for NaN. Files from 2019 on have their RELSHIPP and JWTRNS translated to
    RELP and JWTR as coded in 2018.
    """
    wanted, year = task_of(task), survey_year(year, horizon)
    files = available(folder)
    names = states_of(states, [file.state for file in files])
    parts: list[Table] = []
    holders: dict[str, str] = {}  # state -> the name that brought its rows
    for name in names:
        file = file_of(name, wanted, year, horizon, files, folder)
        if file.task is None:
            rows = _raw_columns(file.path, name, wanted, year, horizon)
            part = apply(task, rows, missing, f"acs:{name}")
        else:
            part = _extract(file, name, wanted, missing)
        for fips in np.unique(part.columns.get("ST", ())).tolist():
            state = STATE_OF.get(fips, str(fips))
            if name in STATES and name != state:
                raise ValueError(
                    f"{file.path} should hold {name} (ST {STATES[name]}) only, it has ST {fips}"
                )
            if state in holders:
                raise ValueError(f"{holders[state]} and {name} both hold rows of {state}; drop one")
            holders[state] = name
        parts.append(part)
    shared = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in shared}
    source = source_name(names, task, year, horizon)
    return Table(columns, wanted.label, wanted.features, source, missing=missing)


def _extract(file: SurveyFile, state: str, task: CensusTask, missing: int | None) -> Table:
    """The rows of a parquet extract; of one of several states, those of the state."""
    several = file.state != state
    needed = [*task.features, task.label, *["ST"] * several]
    columns = read_columns(file.path, only=[*needed, *CARRIED])
    refuse_absent(needed, columns, task, file.path)
    kept = (*task.features, *(name for name in CARRIED if name in columns), task.label)
    table = {name: fill(Column(name, columns[name]).numbers(), missing) for name in kept}
    table[task.label] = table[task.label] == 1
    if several:
        chosen = table["ST"] == STATES[state]
        if not chosen.any():
            raise ValueError(
                f"{file.path} has no rows of {state}; get them with `fairbound data fetch {state}`"
            )
        table = {name: column[chosen] for name, column in table.items()}
    return Table(table, task.label, task.features, f"acs:{state}", missing=missing)


# Raw person files ---------------------------------------------------------------------------------


def _raw_columns(
    path: Path, state: str, task: CensusTask, year: int, horizon: str
) -> dict[str, NDArray[Any]]:
    """The task's columns of a person file under their names of 2018, NaN where a field is empty."""
    pandas = need("pandas", "data", f"Reading {path.name}")
    source = _source_columns(path, state, year, horizon, task)
    with _opened(path, state) as lines:
        # Files up to 2016 pad empty fields with spaces.
        frame = pandas.read_csv(
            lines, usecols=list(source.values()), dtype=np.float64, skipinitialspace=True
        )
    columns = {}
    for name, name_in_file in source.items():
        column = frame[name_in_file].to_numpy()
        codes = {} if name_in_file == name else NEWER[name][1]
        columns[name] = _translated(path, name_in_file, column, codes) if codes else column
    return columns


def check_raw(path: Path, state: str, year: int, horizon: str) -> None:
    """Refuse, in a sentence, a raw file that is damaged, of another survey, or without the columns
    of the task Income."""
    with _opened(path, state) as lines:
        # to the end: the checksums of a zip or gzip file are compared there
        while lines.read(1 << 20):
            pass
    _source_columns(path, state, year, horizon, TASKS["Income"])


def _source_columns(
    path: Path, state: str, year: int, horizon: str, task: CensusTask
) -> dict[str, str]:
    """Name in 2018 -> name in this file, of the columns that the task needs or carries."""
    with _opened(path, state) as lines:
        text = io.TextIOWrapper(lines, encoding="utf-8-sig", errors="replace")
        reader = csv.reader(text, skipinitialspace=True)
        header, first = next(reader, []), next(reader, [])
    _refuse_other_survey(path, header, first, year, horizon)
    _refuse_cut_short(path, header)
    source = {}
    for name in (*task.columns, *CARRIED):
        newer = NEWER[name][0] if name in NEWER else name
        if name in header or newer in header:
            source[name] = name if name in header else newer
    if not source:
        raise ValueError(
            f"{path} is not a PUMS person file: it begins with {','.join(header)[:60]!r}"
        )
    refuse_absent(task.columns, [*source, *header], task, path)
    return source


def _translated(
    path: Path, name: str, column: NDArray[Any], codes: Mapping[int, int]
) -> NDArray[Any]:
    old = np.full(len(column), np.nan)
    for newer, code in codes.items():
        old[column == newer] = code
    unknown = np.isnan(old) & ~np.isnan(column)
    if unknown.any():
        raise ValueError(f"{path} has {name} = {column[unknown.argmax()]:g}, an unknown code")
    return old


@contextmanager
def _opened(path: Path, state: str) -> Iterator[IO[bytes]]:
    """The bytes of the csv: plain, gzipped, or the state's person file within a zip.

    Whatever a reader says about a damaged file becomes one sentence with its name.
    """
    try:
        if path.suffix.lower() == ".zip":
            with (
                zipfile.ZipFile(path) as archive,
                archive.open(person_file(archive, state)) as lines,
            ):
                yield lines
        else:
            opened = gzip.open if path.suffix.lower() == ".gz" else open
            with opened(path, "rb") as lines:
                yield cast(IO[bytes], lines)
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


def person_file(archive: zipfile.ZipFile, state: str) -> str:
    """The name of the state's person file within a zip, in whatever folder and case."""
    names = archive.namelist()
    for name in names:
        inside = identify(Path(name))
        if inside and inside.path.suffix.lower() == ".csv" and inside.state == state:
            return name
    raise FileNotFoundError(
        f"there is no person file of {state} in {archive.filename}, only {', '.join(names[:5])}"
    )


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
