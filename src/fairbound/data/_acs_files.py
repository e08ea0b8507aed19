"""Files of the American Community Survey on this machine: their names, where they lie, and which
there are.

Raw person files lie as Folktables lays them out, `<year>/<horizon>/psam_p<fips>.csv` (to 2016:
`ss16pok.csv`), or directly in the folder; also gzipped, or in the Census Bureau's zip
(`csv_pok.zip`). A parquet extract, `acs/acsincome_2018_OK.parquet`, holds one task's finished rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fairbound._utils.sentences import did_you_mean
from fairbound.data import _synthetic as synthetic
from fairbound.data._tasks import TASKS, CensusTask

HORIZONS = ("1-Year", "5-Year")
USUAL_YEAR = 2018  # of published results, the paper's too
OLDEST = 2014  # earlier files have other columns and other addresses
# postal abbreviation and FIPS code, as in the column ST
_STATES = """
AL 1, AK 2, AZ 4, AR 5, CA 6, CO 8, CT 9, DE 10, DC 11, FL 12, GA 13, HI 15, ID 16,
IL 17, IN 18, IA 19, KS 20, KY 21, LA 22, ME 23, MD 24, MA 25, MI 26, MN 27, MS 28,
MO 29, MT 30, NE 31, NV 32, NH 33, NJ 34, NM 35, NY 36, NC 37, ND 38, OH 39, OK 40,
OR 41, PA 42, RI 44, SC 45, SD 46, TN 47, TX 48, UT 49, VT 50, VA 51, WA 53, WV 54,
WI 55, WY 56, PR 72
"""
STATES: Mapping[str, int] = MappingProxyType(
    {state: int(fips) for state, fips in map(str.split, _STATES.split(","))}
)
STATE_OF = MappingProxyType({fips: state for state, fips in STATES.items()})
RAW = re.compile(
    r"(?:psam_p(?P<fips>\d\d)|(?:ss(?P<year>\d\d)p|csv_p)(?P<state>[a-z]{2}))"
    r"\.(?:csv|csv\.gz|csv\.zip|zip)"
)
EXTRACT = re.compile(r"acs(?P<task>[a-z]+)_(?P<year>\d{4})_(?P<state>\w+)\.parquet", re.IGNORECASE)
LAYOUT = re.compile(r"(?:.*/)?(?P<year>\d{4})/(?P<horizon>[15]-Year)/[^/]+")


@dataclass(frozen=True)
class SurveyFile:
    """A file, and what its name and folder say of it."""

    state: str  # "OK", or the name of an extract of several: "42states"
    task: str | None  # of an extract; None: a raw file, which serves every task
    year: int | None  # None: a raw file outside the layout, which could be of any year
    horizon: str | None
    path: Path

    @property
    def source(self) -> str:
        """The name by which `load` reads the file; that of a raw file is for the Income task."""
        return source_name(
            [self.state],
            self.task or "Income",
            self.year or USUAL_YEAR,
            self.horizon or HORIZONS[0],
        )

    def serves(self, task: CensusTask, year: int, horizon: str) -> bool:
        return (
            self.task in (None, task.name)
            and self.year in (None, year)
            and self.horizon in (None, horizon)
        )


def available(folder: str | Path | None = None) -> tuple[SurveyFile, ...]:
    """Every file there is, in the order in which `load` would choose: the layout's subfolders
    first, because these say which survey it is, and raw files first, which have the survey
    weights."""
    listed: list[SurveyFile] = []
    for place in folders(folder):
        layout = sorted(place.glob("[0-9][0-9][0-9][0-9]/[15]-Year"))
        for directory in (*layout, place, place / "acs"):
            paths = sorted(path for path in directory.glob("*") if path.is_file())
            files = filter(None, map(identify, paths))
            listed += sorted(files, key=lambda file: (bool(file.task), file.path.suffix.lower()))
    return tuple(listed)


def folders(folder: str | Path | None = None) -> tuple[Path, ...]:
    """The folders to search, if they exist: only `folder` if you name it; else $FAIRBOUND_DATA,
    which must exist if it is set, and then the user's cache."""
    return tuple(place for place in _places(folder) if place.is_dir())


def download_folder() -> Path:
    """Where fetched files go: $FAIRBOUND_DATA, or the user's cache."""
    named = os.environ.get("FAIRBOUND_DATA")
    return Path(named).expanduser() if named else _cache()


def raw_name(state: str, year: int) -> str:
    """The Census Bureau's name of a person file.

    >>> raw_name("OK", 2018), raw_name("OK", 2016)
    ('psam_p40.csv', 'ss16pok.csv')
    """
    return (
        f"psam_p{STATES[state]:02}.csv"
        if year >= 2017
        else f"ss{year % 100:02}p{state.lower()}.csv"
    )


def archive_name(state: str) -> str:
    """The zip in which the Census Bureau offers it."""
    return f"csv_p{state.lower()}.zip"


def source_name(states: Sequence[str], task: str, year: int, horizon: str) -> str:
    """How `load` calls the rows; defaults are omitted.

    >>> (
    ...     source_name(["OK", "VA"], "Income", 2018, "1-Year"),
    ...     source_name(["OK"], "Income", 2018, "5-Year"),
    ... )
    ('acs:OK+VA', 'acs:OK:Income:2018:5-Year')
    """
    parts = ["acs", "+".join(states)]
    if (task, year, horizon) != ("Income", USUAL_YEAR, HORIZONS[0]):
        parts += [task, str(year)]
    return ":".join(parts if horizon == HORIZONS[0] else [*parts, horizon])


def survey_year(year: int | str, horizon: str) -> int:
    """The year as a number; refuses surveys that do not exist."""
    if horizon not in HORIZONS:
        raise ValueError(f"the horizon is {' or '.join(HORIZONS)}, got {horizon!r}")
    if not str(year).isdigit() or int(year) < OLDEST:
        raise ValueError(f"the year must be {OLDEST} or later, got {year!r}")
    return int(year)


def states_of(states: Sequence[str], also: Sequence[str] = ()) -> tuple[str, ...]:
    """The states asked for, each once and known.

    >>> states_of(["ok", "VA"])
    ('OK', 'VA')
    """
    asked = [states] if isinstance(states, str) else list(states)
    if not asked:
        raise ValueError('name at least one state, such as "OK"')
    known = {name.lower(): name for name in (*STATES, *also)}
    for state in asked:
        if state.lower() not in known:
            raise ValueError(
                f"no state is abbreviated {state!r}; {did_you_mean(state, known.values())}"
            )
    names = tuple(known[state.lower()] for state in asked)
    if len(set(names)) < len(names):
        raise ValueError(f"one of {', '.join(names)} is asked for twice")
    return names


def _cache() -> Path:
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "fairbound"
    )


def _places(folder: str | Path | None) -> list[Path]:
    if folder is not None:  # a file from elsewhere would be a surprise
        return [Path(folder).expanduser()]
    named = os.environ.get("FAIRBOUND_DATA")
    # synthetic data in its place would be a surprise
    if named and not download_folder().is_dir():
        raise FileNotFoundError(
            f"FAIRBOUND_DATA is {named!r}, which is not a folder on this machine; set it to the"
            " folder of your census files, or unset it to use those in the cache, or synthetic"
            " data where there are none"
        )
    return list(dict.fromkeys(place.resolve() for place in (download_folder(), _cache())))


def identify(path: Path) -> SurveyFile | None:
    """What a file is by its name and its folder; None: none of ours."""
    layout = LAYOUT.fullmatch(path.as_posix())
    year, horizon = (int(layout["year"]), layout["horizon"]) if layout else (None, None)
    if raw := RAW.fullmatch(path.name.lower()):
        state = STATE_OF.get(int(raw["fips"]), "") if raw["fips"] else raw["state"].upper()
        if raw["year"]:
            year = 2000 + int(raw["year"])
        return SurveyFile(state, None, year, horizon, path) if state in STATES else None
    extract = EXTRACT.fullmatch(path.name)
    task_of = {task.lower(): task for task in TASKS}
    if extract is None or extract["task"].lower() not in task_of:
        return None
    state = extract["state"]
    if state.upper() in STATES:
        state = state.upper()
    task = task_of[extract["task"].lower()]
    return SurveyFile(state, task, int(extract["year"]), HORIZONS[0], path)


def file_of(
    state: str,
    task: CensusTask,
    year: int,
    horizon: str,
    files: Sequence[SurveyFile],
    folder: str | Path | None,
) -> SurveyFile:
    """The first of the files that holds the state's rows, else the first extract of several
    states, which may hold them."""
    serving = [file for file in files if file.serves(task, year, horizon)]
    own = [file for file in serving if file.state == state]
    several = [file for file in serving if file.state not in STATES and state in STATES]
    for file in (*own, *several):
        return file
    names, remedy = f"acs{task.name.lower()}_{year}_{state}.parquet", ""
    if state in STATES:
        names = f"{raw_name(state, year)} or {archive_name(state)} or {names}"
        remedy = (
            f"; get it with `fairbound data fetch {state}` ({year}, {horizon}), or place one there"
            " with folktables or by hand"
        )
    if state in synthetic.STATES and task.name == "Income":
        remedy += f"; or use synthetic:{state}, which needs no file"
    found = [file for file in files if file.state == state]
    others = ", ".join(f"{file.path} ({file.task or 'raw'}, {file.year})" for file in found)
    only = f"; there is only {others}" if others else ""
    places = ", ".join(map(str, _places(folder)))
    raise FileNotFoundError(
        f"no file of {state} for {task.name}, {year} {horizon}: searched for {names} in"
        f" {places}{only}{remedy}"
    )
