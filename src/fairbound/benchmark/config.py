"""Experiments as TOML: what is compared, on which data, for how long, and what the paper prints for it.

    load("income-ok-race")       an experiment that is installed with the package (`names()`)
    load("my-experiment.toml")   a file of the user's own, of the same form

The keys of a file are the fields of `Experiment`, `SplitSpec` and `Row`; what stands under [common] holds for every row
that does not say otherwise, and `like = "SSw"` completes a row by an earlier one; settings are completed one by one.
Whatever is not understood is refused: a misspelt setting that went unnoticed would be another experiment than the one
that was asked for. Nothing is loaded or run here.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from fairbound.algorithms import ALGORITHMS, Adaptive
from fairbound.algorithms.schedules import Factorial, InverseSqrt, Linear, Power, Schedule
from fairbound.benchmark.config_types import (
    Kind,
    is_count,
    is_number,
    is_text,
    is_whole,
    known_name,
    listed_all,
    nearest,
    refuse_missing,
    taken_from,
)
from fairbound.core import Algorithm
from fairbound.data.dataset import Split

NOTIONS = {  # l_i: mean loss of group i
    "pairwise": "l_i - l_j <= bound for every two groups, in both directions: Experiment 1",
    "against_mean": "l_i - mean_j l_j <= bound and its negative, the mean unweighted: eq. (4) as printed",
    "absolute_against_pooled": "|l_i - l| <= bound, l the loss of all rows, a nonsmooth row a group: the authors' form",
}
SCHEDULES: dict[str, type[Schedule] | type[Adaptive]] = {
    "InverseSqrt": InverseSqrt,
    "Power": Power,
    "Linear": Linear,
    "Factorial": Factorial,
    "Adaptive": Adaptive,
}
RUN = "run"  # stands for the number of steps of the run in a schedule that ends with it
TRAINING_POOLS = ("train", "dual")  # no training step reads the rows that choose or test
REFERENCE_STEPS = 10_000  # of SSL-ALM: what they pass through the model is the budget of equal rows


class Printed(NamedTuple):
    """A number of the paper."""

    mean: float
    std: float  # over runs


@dataclass(frozen=True)
class Paper:
    """What the paper prints for a row; empty where it prints nothing."""

    validation: Mapping[str, Printed]  # loss, violation: the appendix's tables
    train: Mapping[str, Printed]  # Ind, Sp, Ina, Sf, Wd: the fairness table
    test: Mapping[str, Printed]


@dataclass(frozen=True)
class ScheduleSpec:
    """A setting that changes along the run, before the length of the run is known.

    >>> ScheduleSpec("Linear", {"start": 0.05, "steps": "run"}).built(steps=1000)
    Linear(start=0.05, steps=1000.0, end=0.05)
    """

    schedule: str  # a key of SCHEDULES
    numbers: Mapping[str, float | str]  # text: RUN

    def built(self, steps: int) -> Schedule | Adaptive:
        """The schedule for a run of this many steps."""
        return SCHEDULES[self.schedule](**{k: float(steps if v == RUN else v) for k, v in self.numbers.items()})


@dataclass(frozen=True)
class SplitSpec:
    """Which rows train and test.

    Without shares the first split is the paper's (80 / 10 / 10, `fairbound.data.paper_split`), and any others are
    random ones of its sizes.
    """

    seed: int
    splits: int = 1
    shares: Mapping[str, float] | None = None  # of the pools train, dual, validation, test


@dataclass(frozen=True)
class Row:
    """One method with its settings: a row of a table. What it trains with is here, what is measured in `Experiment`."""

    name: str
    method: str  # a key of ALGORITHMS
    settings: Mapping[str, float | bool | ScheduleSpec]
    steps: int  # the paper's seconds as steps
    batch: int  # rows of a draw's objective, and of each group for its constraints
    notion: str  # a key of NOTIONS
    bound: float  # 0 for the penalised problem, eq. (13)
    at: str  # where in the paper the numbers stand
    fairret: float = 0.0  # weight of the Fairret regularizer; 0 for none
    pools: tuple[str, ...] = ()  # whose rows each draw's constraints read; empty: those of "train"
    paper: Paper = Paper({}, {}, {})
    note: str = ""  # where the paper contradicts itself, or leaves something open
    equal_rows: bool = True  # whether it has a place in the budget of equal rows, where its own steps do not count
    own: type[Algorithm[Any]] | None = None  # a method of the user's, in the place of `method`

    def algorithm(self, steps: int) -> Algorithm[Any]:
        """The method with its settings, for runs of this many steps.

        >>> load("income-ok-race").rows[0].algorithm(steps=1000)
        SGD(tau=0.05)
        """
        settings = {k: v.built(steps) if isinstance(v, ScheduleSpec) else v for k, v in self.settings.items()}
        made: Algorithm[Any] = (self.own or ALGORITHMS[self.method])(**settings)
        return made

    def rows_per_step(self, groups: int) -> float:
        """Rows that a step passes through the model, for objective and constraints, forward only or also backward.

        Of a random batch size it is the expectation: one mini-batch, and one of 2^(level + 1) times its rows, whose
        halves are the same rows.
        """
        method = self.algorithm(self.steps)
        draws: list[int] = [self.batch * (("f" in read) + groups * ("c" in read)) for read in method.evaluates]
        if method.batch_size_probs is None:
            return float(sum(draws))
        return draws[0] * (1 + math.fsum(2.0 ** (level + 1) * p for level, p in enumerate(method.batch_size_probs)))


@dataclass(frozen=True)
class Experiment:
    """Methods to compare on one problem, with one network and one way to split the rows."""

    name: str  # of the file
    title: str
    at: str  # where it stands in the paper
    state: str  # whose census rows: OK, VA
    group: str  # the protected attribute, as in `fairbound.data.attributes`: RAC1P=1, MAR
    groups: tuple[str, ...]  # names of its groups, in their order
    notion: str  # what is measured, a key of NOTIONS
    bound: float  # what the measured gaps are held against
    hidden: tuple[int, ...]  # widths of the network's hidden layers
    batch: int  # of a row that names none, and of the budget of equal rows
    seeds: int  # runs of each row on each split
    records: int  # states measured along a run, evenly spaced, the last one included
    split: SplitSpec
    rows: tuple[Row, ...]
    measured: tuple[str, ...] = ()  # the parts of the split that are measured; empty: all
    last_states: int = 1  # records at the end of a run whose mean the tables show and the choice reads

    def within(self, budget: str) -> Experiment:
        """The experiment with the rows that have a place in the budget, "paper" or "rows"."""
        return replace(self, rows=tuple(row for row in self.rows if budget == "paper" or row.equal_rows))

    def equal_rows_steps(self, row: Row) -> int:
        """Steps in which the row passes as many rows through the model as 10,000 steps of SSL-ALM do.

        >>> experiment = load("income-ok-race")
        >>> [(row.name, experiment.equal_rows_steps(row)) for row in experiment.rows[:2]]
        [('SGD', 50000), ('SGD-Fairret', 50000)]
        """
        reference = replace(
            row, method="SSLALM", own=None, settings={}, batch=self.batch
        )  # its defaults are the paper's
        groups = len(self.groups)
        return max(1, round(REFERENCE_STEPS * reference.rows_per_step(groups) / row.rows_per_step(groups)))


def names() -> tuple[str, ...]:
    """The experiments that are installed.

    >>> "income-ok-race" in names()
    True
    """
    files = (file.name for file in resources.files("fairbound.benchmark.experiments").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def load(name_or_path: str | Path) -> Experiment:
    """An installed experiment by its name, or one of the user's own by its file.

    >>> load("income-va-marital").groups
    ('Married', 'Widowed', 'Divorced', 'Separated', 'Never married')
    """
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml"):
        path = Path(name_or_path)
        return _experiment(path.stem, _parsed(_text(path), str(path)), str(path))
    if name_or_path not in names():
        raise ValueError(
            f"no experiment called {name_or_path!r} is installed; the nearest is {nearest(name_or_path, names())!r} "
            f"(there are {', '.join(names())}); a file of your own ends in .toml"
        )
    file = f"{name_or_path}.toml"
    text = resources.files("fairbound.benchmark.experiments").joinpath(file).read_text(encoding="utf-8")
    return _experiment(name_or_path, _parsed(text, file), file)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"there is no file {path}; the experiments that need none are {', '.join(names())}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as an experiment: {error}") from error


def _parsed(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file} is no valid TOML: {error}") from error


# What may stand where -------------------------------------------------------------------------------------------------


TEXT = Kind("a text", is_text)
STATE = Kind("a state's two capital letters, such as OK", lambda v: is_text(v) and bool(re.fullmatch("[A-Z]{2}", v)))
TRUTH = Kind("true or false", lambda v: isinstance(v, bool))
COUNT = Kind("a whole number, at least 1", is_count)
SEED = Kind("a whole number, at least 0", lambda v: is_whole(v) and v >= 0)
SIZE = Kind("a finite number, at least 0", lambda v: is_number(v) and 0 <= v < math.inf, float)
SHARE = Kind("a share above 0 and at most 1", lambda v: is_number(v) and 0 < v <= 1, float)
WIDTHS = Kind("a list of whole numbers, each at least 1", lambda v: listed_all(v, is_count), tuple)
GROUPS = Kind(
    "a list of two or more different names",
    lambda v: listed_all(v, is_text) and len(v) >= 2 and len(set(v)) == len(v),
    tuple,
)
POOLS = Kind("a list with the name of a pool for each draw", lambda v: listed_all(v, is_text), tuple)
PARTS = Kind(
    f"a list with one or more of {', '.join(Split._fields)}",
    lambda v: listed_all(v, lambda part: part in Split._fields) and bool(v),
    tuple,
)
TABLE = Kind("a table", lambda v: isinstance(v, dict))
ROWS = Kind("a list of tables, at least one", lambda v: listed_all(v, TABLE.holds) and bool(v))
PRINTED = Kind(
    "[mean, standard deviation]",
    lambda v: listed_all(v, SIZE.holds) and len(v) == 2,
    lambda v: Printed(float(v[0]), float(v[1])),
)

EXPERIMENT = {
    "title": TEXT, "at": TEXT, "state": STATE, "group": TEXT, "groups": GROUPS, "notion": TEXT, "bound": SIZE,
    "hidden": WIDTHS, "batch": COUNT, "seeds": COUNT, "records": COUNT, "measured": PARTS, "last_states": COUNT,
    "split": TABLE, "common": TABLE, "rows": ROWS,
}  # fmt: skip
SPLIT = {"seed": SEED, "splits": COUNT, "shares": TABLE}
COMMON = {
    "method": TEXT, "settings": TABLE, "steps": COUNT, "batch": COUNT, "notion": TEXT, "bound": SIZE, "at": TEXT,
    "fairret": SIZE, "pools": POOLS, "equal_rows": TRUTH,
}  # fmt: skip
ROW = {"name": TEXT, "like": TEXT, **COMMON, "paper": TABLE, "note": TEXT}
OPTIONAL_IN_ROW = ("like", "settings", "fairret", "pools", "equal_rows", "paper", "note")
PAPER = {"validation": TABLE, "train": TABLE, "test": TABLE}
VALIDATION = {"loss": PRINTED, "violation": PRINTED}
FAIRNESS = {"Ind": PRINTED, "Sp": PRINTED, "Ina": PRINTED, "Sf": PRINTED, "Wd": PRINTED}


# From tables to the dataclasses ---------------------------------------------------------------------------------------


def _experiment(name: str, table: dict[str, Any], file: str) -> Experiment:
    taken = taken_from(table, EXPERIMENT, file, optional=("measured", "last_states", "common"))
    known_name(taken["notion"], NOTIONS, "notion", file)
    if taken.get("last_states", 1) > taken["records"]:
        raise ValueError(f"{file}: last_states is {taken['last_states']}, but records is only {taken['records']}")
    needed = ("validation",) if taken.get("last_states", 1) > 1 else ("train", "test")
    if "measured" in taken and not set(needed) <= set(taken["measured"]):
        raise ValueError(f"{file}: measured must name {' and '.join(needed)}, which its tables show")
    split = _split(taken.pop("split"), f"{file}, split")
    common = taken_from(taken.pop("common", {}), COMMON, f"{file}, common", optional=COMMON)
    common = {key: taken[key] for key in ("batch", "notion", "bound")} | common
    rows = _rows(taken.pop("rows"), common, split, file)
    for row in rows:
        if row.steps < taken["records"]:
            raise ValueError(f"{file}: records is {taken['records']}, but row {row.name!r} has {row.steps} steps")
    return Experiment(name=name, split=split, rows=rows, **taken)


def _split(table: dict[str, Any], place: str) -> SplitSpec:
    taken = taken_from(table, SPLIT, place, optional=("splits", "shares"))
    if "shares" in taken:
        taken["shares"] = _shares(taken["shares"], f"{place}, shares")
    return SplitSpec(**taken)


def _shares(table: dict[str, Any], place: str) -> dict[str, float]:
    shares = taken_from(
        table, dict.fromkeys(Split._fields, SHARE), place, optional=("dual", "validation", "calibration")
    )
    if abs(math.fsum(shares.values()) - 1) > 1e-9:
        raise ValueError(f"{place}: they must add up to 1, got {math.fsum(shares.values()):g}")
    return shares


def _rows(listed: list[dict[str, Any]], common: dict[str, Any], split: SplitSpec, file: str) -> tuple[Row, ...]:
    tables: dict[str, dict[str, Any]] = {}  # by name, completed
    for number, table in enumerate(listed, start=1):
        whole = _whole_row(table, common, tables, f"{file}, row {table.get('name', number)!r}")
        if whole["name"] in tables:
            raise ValueError(f"{file}: two rows are called {whole['name']!r}; results are kept by name, so rename one")
        tables[whole["name"]] = whole
    return tuple(_row(table, split, f"{file}, row {name!r}") for name, table in tables.items())


def _whole_row(
    table: dict[str, Any], common: dict[str, Any], earlier: Mapping[str, dict[str, Any]], place: str
) -> dict[str, Any]:
    """A row's entries, completed by those of the row that it is like, or by the common ones."""
    own = taken_from(table, ROW, place, optional=[key for key in ROW if key != "name"])
    base = common
    if "like" in own:
        if not earlier:
            raise ValueError(f"{place}: like names an earlier row, and this is the first")
        base = earlier[known_name(own.pop("like"), earlier, "earlier row", place)]
    whole = base | own | {key: base.get(key, {}) | own.get(key, {}) for key in ("settings", "paper")}
    refuse_missing(whole, ROW, place, OPTIONAL_IN_ROW)
    return whole


def _row(table: dict[str, Any], split: SplitSpec, place: str) -> Row:
    known_name(table["method"], ALGORITHMS, "method", place)
    known_name(table["notion"], NOTIONS, "notion", place)
    settings = _settings(table["settings"], table["method"], f"{place}, settings")
    row = Row(**table | {"settings": settings, "paper": _paper(table["paper"], f"{place}, paper")})
    _refuse_unbuildable(row, place)
    _refuse_pools(row, split, place)
    return row


def _settings(table: dict[str, Any], method: str, place: str) -> dict[str, float | bool | ScheduleSpec]:
    known = [field.name for field in fields(ALGORITHMS[method])]  # type: ignore[arg-type]
    settings: dict[str, float | bool | ScheduleSpec] = {}
    for name, value in table.items():
        known_name(name, known, f"setting of {method}", place)
        if isinstance(value, dict):
            settings[name] = _schedule(value, f"{place}, {name}")
        elif isinstance(value, bool | int | float):
            settings[name] = value
        else:
            raise ValueError(
                f"{place}: {name} must be a number, true or false, or a schedule such as "
                f'{{ schedule = "InverseSqrt", start = 0.05 }}, got {value!r}'
            )
    return settings


def _schedule(table: dict[str, Any], place: str) -> ScheduleSpec:
    name = taken_from({k: v for k, v in table.items() if k == "schedule"}, {"schedule": TEXT}, place)["schedule"]
    known_name(name, SCHEDULES, "schedule", place)
    listed = {field.name: field for field in fields(SCHEDULES[name])}  # type: ignore[arg-type]
    number = Kind("a number", is_number, float)
    length = Kind(f'a number of steps, or "{RUN}" for those of the run', lambda v: v == RUN or is_number(v))
    kinds = {key: length if key == "steps" else number for key in listed}
    optional = [key for key, field in listed.items() if field.default is not MISSING]
    return ScheduleSpec(name, taken_from({k: v for k, v in table.items() if k != "schedule"}, kinds, place, optional))


def _paper(table: dict[str, Any], place: str) -> Paper:
    taken = taken_from(table, PAPER, place, optional=PAPER)
    kinds = {"validation": VALIDATION, "train": FAIRNESS, "test": FAIRNESS}
    return Paper(**{
        part: taken_from(taken[part], kinds[part], f"{place}, {part}") if part in taken else {} for part in kinds
    })  # fmt: skip


def _refuse_unbuildable(row: Row, place: str) -> None:
    """The ranges of the settings are checked by the method itself."""
    try:
        row.algorithm(row.steps)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error


def _refuse_pools(row: Row, split: SplitSpec, place: str) -> None:
    draws = row.algorithm(row.steps).draws
    if row.pools and len(row.pools) != draws:
        raise ValueError(
            f"{place}: {row.method} draws {draws} times a step, so pools needs {draws} names, got {row.pools!r}"
        )
    for pool in row.pools:
        known_name(pool, TRAINING_POOLS, "pool of a training step", place)
        if pool != "train" and pool not in (split.shares or {}):
            raise ValueError(f"{place}: the constraints read {pool!r}, of which the split has none; give it a share")
