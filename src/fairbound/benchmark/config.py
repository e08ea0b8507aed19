"""Experiments as TOML: what is compared, on which data, for how long, and what the paper prints for it.

    load("income-ok-race")       an experiment that is installed with the package (`names()`)
    load("my-experiment.toml")   a file of the user's own, of the same form

The keys of a file are the fields of `Experiment`, `SplitSpec` and `Row`. A row is completed by the keys under [common],
or by those of an earlier row that it names: `like = "SSw"`. Hyper-parameters are completed one by one, at last by
those under [settings.METHOD], which hold for every row of that method. The user's own data are named in the file:
`source = "my.parquet"` (a path from the folder of the file), `label = "approved"`, `group = "sex"`.

Whatever is not understood is refused: a misspelt setting that went unnoticed would be another experiment than the one
that was asked for. Nothing is loaded or run here.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from fairbound.algorithms import ALGORITHMS, Adaptive
from fairbound.algorithms.schedules import Exponential, Factorial, InverseSqrt, Linear, Power
from fairbound.benchmark.budget import examples_per_step
from fairbound.constraints.notions import NOTIONS
from fairbound.core import Algorithm, Schedule
from fairbound.data.dataset import Split
from fairbound.data.table import is_census

INSTALLED = Path(__file__).parent / "experiments"
COMPLETING = ("common", "settings")  # keys of a file that complete its rows
PAPER_NOTIONS = {  # the paper's, beside those of `constraints.NOTIONS`; l_i: mean loss of group i
    "pairwise": "l_i - l_j <= bound for every two groups, in both directions: Experiment 1",
    "against_mean": "l_i - mean_j l_j <= bound and its negative, the mean unweighted: eq. (4) as printed",
    "absolute_against_pooled": "|l_i - l| <= bound, l the loss of all examples, one nonsmooth constraint a group: the "
    "authors' form",
}
SCHEDULES: dict[str, type[Schedule] | type[Adaptive]] = {
    kind.__name__: kind for kind in (InverseSqrt, Power, Linear, Exponential, Factorial, Adaptive)
}
RUN = "run"  # means the number of steps of the run in a schedule that ends with it
TRAINING_POOLS = ("train", "dual")  # no training step reads the examples that choose or test
REFERENCE_STEPS = 10_000  # of SSL-ALM: what they pass through the model is the budget of equal examples
REFERENCE_SETTINGS = {"samples": 2}  # of SSL-ALM: its form in the paper, two mini-batches a step


def nearest(name: object, known: Iterable[str]) -> str:
    by_lower = {one.lower(): one for one in known}
    return by_lower[get_close_matches(str(name).lower(), list(by_lower), n=1, cutoff=0.0)[0]]


def _unknown(name: object, known: Iterable[str], what: str) -> str:
    return f"there is no {what} {name!r}; the nearest is {nearest(name, known)!r} (there are {', '.join(known)})"


def first_mistake(error: ValidationError, kind: Any) -> str:
    """What to say of a wrong file for a dataclass: an unknown key before what may be missing because of it."""
    unknown = [one for one in error.errors() if one["type"] == "unexpected_keyword_argument"]
    first = (unknown or error.errors())[0]
    place = ".".join(map(str, first["loc"]))
    if unknown:
        return f": there is no key {place!r}; the nearest is {nearest(place, [one.name for one in fields(kind)])!r}"
    if first["type"] == "missing":
        return f": the key {place!r} is missing"
    return f"{f', {place}' if place else ''}: {first['msg'].removeprefix('Value error, ')}"


def known_name(name: Any, known: Collection[str], what: str) -> Any:
    if name not in known:
        raise ValueError(_unknown(name, known, what))
    return name


def one_of(what: str, known: Collection[str]) -> AfterValidator:
    return AfterValidator(lambda name: known_name(name, known, what))


def keyed_by(*known: str, needed: Iterable[str]) -> AfterValidator:
    """A table with these keys only, the needed ones among them unless it is empty."""

    def check(table: Mapping[str, float]) -> Mapping[str, float]:
        for name in table:
            known_name(name, known, "key")
        for name in needed:
            if table and name not in table:
                raise ValueError(f"the key {name!r} is missing")
        return table

    return AfterValidator(check)


def _add_up(shares: Mapping[str, float]) -> Mapping[str, float]:
    if abs(math.fsum(shares.values()) - 1) > 1e-9:
        raise ValueError(f"they must add up to 1, got {math.fsum(shares.values()):g}")
    return shares


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) == 1 or len(set(names)) < len(names):
        raise ValueError(f"they must be two or more different names, got {list(names)}")
    return names


Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, ge=1)]
Size = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Notion = Annotated[str, AfterValidator(lambda name: known_name(name, (*PAPER_NOTIONS, *NOTIONS), "notion"))]
Pool = Annotated[str, one_of("pool of a training step", TRAINING_POOLS)]
Part = Annotated[str, one_of("part of a split", Split._fields)]
Shares = Annotated[
    Mapping[str, Annotated[float, Field(strict=True, gt=0, le=1)]],
    keyed_by(*Split._fields, needed=("train", "test")),
    AfterValidator(_add_up),
]
LOSSES = ("loss", "violation")  # of the appendix's tables
METRICS = ("Ind", "Sp", "Ina", "Sf", "Wd")  # of the paper's fairness table
KNOWN_KEYS_ONLY = ConfigDict(extra="forbid")


class Printed(NamedTuple):
    """A number of the paper."""

    mean: Annotated[float, Field(strict=True, allow_inf_nan=False)]
    std: Size  # over runs


@dataclass(frozen=True, config=KNOWN_KEYS_ONLY)
class Paper:
    """What the paper prints for a row; empty where it prints nothing."""

    validation: Annotated[Mapping[str, Printed], keyed_by(*LOSSES, needed=LOSSES)] = Field(default_factory=dict)
    train: Annotated[Mapping[str, Printed], keyed_by(*METRICS, needed=METRICS)] = Field(default_factory=dict)
    test: Annotated[Mapping[str, Printed], keyed_by(*METRICS, needed=METRICS)] = Field(default_factory=dict)


@dataclass(frozen=True, config=KNOWN_KEYS_ONLY)
class SplitSpec:
    """Which examples train and test.

    Without shares the first split is the paper's (80 / 10 / 10, `fairbound.data.paper_split`), and any others are
    random ones of its sizes.
    """

    seed: Annotated[int, Field(strict=True, ge=0)]
    splits: Count = 1
    shares: Shares | None = None


@dataclass(frozen=True, config=KNOWN_KEYS_ONLY)
class Row:
    """One method with its settings: a row of a table. What it trains with is here, what is measured in `Experiment`."""

    name: Text
    method: str  # a key of ALGORITHMS
    settings: Mapping[str, Any]  # hyper-parameters: numbers, truth values, and tables that name a schedule
    steps: Count  # the paper's seconds as steps
    batch: Count  # examples of a draw's objective, and of each group for its constraints
    notion: Notion
    bound: Size  # 0 for the penalized problem, eq. (13)
    reference: Text  # where in the paper the numbers stand
    fairret: Size = 0.0  # weight of the Fairret regularizer; 0 for none
    pools: tuple[Pool, ...] = ()  # of the examples that each draw's constraints read; empty: "train"
    paper: Paper = Paper()
    note: str = ""  # where the paper contradicts itself, or is ambiguous
    equal_examples: Annotated[bool, Field(strict=True)] = (
        True  # whether it has a place in that budget, where its own steps do not count
    )
    custom: type[Algorithm] | None = None  # type: ignore[type-arg]  # a method of the user's own, in the place of `method`

    @model_validator(mode="after")
    def _builds(self) -> Row:
        """The ranges of the settings are checked by the method itself."""
        if self.custom is None:
            known_name(self.method, ALGORITHMS, "method")
        try:
            draws = self.algorithm(self.steps).draws
        except TypeError as error:
            raise ValueError(str(error)) from error
        if self.pools and len(self.pools) != draws:
            raise ValueError(
                f"{self.method} draws {draws} times a step, so pools needs {draws} names, got {self.pools!r}"
            )
        return self

    @property
    def algorithm_type(self) -> type[Algorithm[Any]]:
        return self.custom or ALGORITHMS[self.method]

    def algorithm(self, steps: int) -> Algorithm[Any]:
        """The method with its settings, for runs of this many steps.

        >>> load("income-ok-race").rows[0].algorithm(steps=1000)
        SGD(tau=0.05)
        """
        made: Algorithm[Any] = build_with_settings(self.algorithm_type, self.settings, steps)
        return made

    def examples_per_step(self, groups: int) -> float:
        """Examples that a step passes through the model (`budget`)."""
        return examples_per_step(self.algorithm(self.steps), self.batch, groups * self.batch)


@dataclass(frozen=True, config=KNOWN_KEYS_ONLY)
class Experiment:
    """Methods to compare on one problem, with one network and one way to split the examples."""

    name: str  # of the file
    title: Text
    reference: Text  # where it stands in the paper
    group: Text  # the protected attribute, as in `fairbound.data.attributes`: RAC1P=1, MAR
    notion: Notion  # what is measured, on the losses of the groups
    bound: Size  # what the measured gaps are held against
    hidden: tuple[Count, ...]  # widths of the network's hidden layers
    batch: Count  # of a row that names none, and of the budget of equal examples
    seeds: Count  # runs of each row on each split
    records: Count  # states measured along a run, evenly spaced, the last one included
    split: SplitSpec
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    state: Text | None = None  # whose census data: OK, VA
    source: Text | None = None  # instead: a table of the user's own, or data named as in `fairbound.data.load`
    label: Text | None = None  # of that table: the column to predict
    positive: Any = None  # the label's value that counts as 1, where that is not evident
    groups: Annotated[tuple[Text, ...], AfterValidator(_different)] = ()  # their names; empty: those of the data
    measured: tuple[Part, ...] = ()  # the parts of the split that are measured; empty: all
    last_states: Count = 1  # records at the end of a run whose mean the tables show and the choice reads

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        if (self.state is None) == (self.source is None):
            raise ValueError('name the data: either state = "OK" (census data) or source = "my.csv" with its label')
        if self.last_states > self.records:
            raise ValueError(f"last_states is {self.last_states}, but records is only {self.records}")
        needed = ("validation",) if self.last_states > 1 else ("train", "test")
        if self.measured and not set(needed) <= set(self.measured):
            raise ValueError(f"measured must name {' and '.join(needed)}, which its tables show")
        for row in self.rows:
            if row.steps < self.records:
                raise ValueError(f"records is {self.records}, but row {row.name!r} has {row.steps} steps")
            for pool in row.pools:
                if pool != "train" and pool not in (self.split.shares or {}):
                    raise ValueError(
                        f"row {row.name!r}: the constraints read {pool!r}, of which the split has none; give it a share"
                    )
        return self

    def within(self, budget: str) -> Experiment:
        """The experiment with the rows that have a place in the budget, "paper" or "examples"."""
        return replace(self, rows=tuple(row for row in self.rows if budget == "paper" or row.equal_examples))

    def equal_examples_steps(self, row: Row) -> int:
        """Steps in which the row passes as many examples through the model as 10,000 steps of SSL-ALM do.

        >>> experiment = load("income-ok-race")
        >>> [(row.name, experiment.equal_examples_steps(row)) for row in experiment.rows[:2]]
        [('SGD', 50000), ('SGD-Fairret', 50000)]
        """
        reference = replace(
            row, method="SSLALM", custom=None, settings=REFERENCE_SETTINGS, pools=(), batch=self.batch
        ).examples_per_step(len(self.groups))
        return max(1, round(REFERENCE_STEPS * reference / row.examples_per_step(len(self.groups))))


def build_with_settings(kind: type[Any], settings: Mapping[str, Any], steps: int) -> Any:
    """A method or a schedule with its settings, for a run of this many steps; a table is a schedule.

    >>> build_with_settings(Linear, {"start": 0.05, "steps": "run"}, steps=1000)
    Linear(start=0.05, steps=1000.0, end=0.05)
    """
    made = dict(settings)
    for name, value in settings.items():
        known_name(name, [field.name for field in fields(kind)], f"setting of {kind.__name__}")
        if isinstance(value, Mapping):
            known_name(value.get("schedule"), SCHEDULES, f"schedule of {name} called")
            numbers = {key: entry for key, entry in value.items() if key != "schedule"}
            made[name] = build_with_settings(SCHEDULES[value["schedule"]], numbers, steps)
        elif (name, value) == ("steps", RUN):
            made[name] = float(steps)
    return kind(**made)


# Files ----------------------------------------------------------------------------------------------------------------


def names() -> tuple[str, ...]:
    """The experiments that are installed.

    >>> "income-ok-race" in names()
    True
    """
    return tuple(sorted(path.stem for path in INSTALLED.glob("*.toml")))


def paper_names() -> tuple[str, ...]:
    """Those that reproduce the paper; the others compare every method of the toolkit, at equal examples.

    >>> set(names()) - set(paper_names()) == {"methods-ok-race", "methods-va-marital"}
    True
    """
    return tuple(name for name in names() if not name.startswith("methods-"))


def load(name_or_path: str | Path) -> Experiment:
    """An installed experiment by its name, or one of the user's own by its file.

    >>> load("income-va-marital").groups
    ('Married', 'Widowed', 'Divorced', 'Separated', 'Never married')
    """
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and path.suffix != ".toml":
        if name_or_path not in names():
            raise ValueError(
                f"no experiment called {name_or_path!r} is installed; the nearest is "
                f"{nearest(name_or_path, names())!r} (there are {', '.join(names())}); a file of your own ends in .toml"
            )
        path = INSTALLED / f"{name_or_path}.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        table |= {"name": path.stem, "rows": _whole_rows(table)}
        if not is_census(table.get("source", "acs:")):
            table["source"] = str(path.parent / table["source"])
        return TypeAdapter(Experiment).validate_python({k: v for k, v in table.items() if k not in COMPLETING})
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"there is no file {path}; the experiments that need none are {', '.join(names())}"
        ) from error
    except ValidationError as error:
        raise ValueError(f"{path}{_sentence(error, table)}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as an experiment: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: rows is a list of tables ([[rows]]), each with a name; common, settings and paper are tables"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from error


def _whole_rows(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every row completed: by the row that it is like or by [common], its settings also by [settings.METHOD]."""
    common = {key: table[key] for key in ("batch", "notion", "bound") if key in table} | table.get("common", {})
    shared = table.get("settings", {})
    for method in shared:
        known_name(method, ALGORITHMS, "method")
    rows: dict[str, dict[str, Any]] = {}
    for own in table.get("rows", ()):
        place, base = f"row {own['name']!r}", common
        if own["name"] in rows:
            raise ValueError(f"{place}: two rows are called so; results are kept by name, so rename one")
        if "like" in own:
            if own["like"] not in rows:
                raise ValueError(
                    f"{place}: like names an earlier row, got {own['like']!r}; "
                    + (f"the nearest is {nearest(own['like'], rows)!r}" if rows else "and this is the first")
                )
            base = rows[own["like"]]
        row = base | {key: value for key, value in own.items() if key != "like"}
        for key in ("settings", "paper"):
            row[key] = base.get(key, {}) | own.get(key, {})
        rows[own["name"]] = row | {"settings": shared.get(row.get("method"), {}) | row["settings"]}
    return list(rows.values())


MODELS: dict[tuple[str, ...], Any] = {(): Experiment, ("split",): SplitSpec, ("rows",): Row, ("rows", "paper"): Paper}


def _sentence(refused: ValidationError, table: Mapping[str, Any]) -> str:
    """The first error after its place in the file; a misspelt key is reported before the key that is then missing."""
    error = min(refused.errors(), key=lambda one: one["type"] != "unexpected_keyword_argument")
    place, key, message = list(error["loc"]), error["loc"][-1] if error["loc"] else "", error["msg"]
    if error["type"] == "value_error":
        message = message.removeprefix("Value error, ")
    elif error["type"] == "unexpected_keyword_argument":
        model = MODELS[tuple(one for one in place[:-1] if isinstance(one, str))]
        message = _unknown(place.pop(), [field.name for field in fields(model) if field.name != "custom"], "key")
    elif error["type"] == "missing":
        message = f"the key {place.pop()!r} is missing"
    else:
        name = f"{place.pop(-2)}[{place.pop()}]" if isinstance(key, int) and place[:1] != ["rows"] else place.pop()
        message = f"{re.sub('^[A-Z][a-z]+ ', f'{name} ', message)}, got {error['input']!r}"
    if place[:1] == ["rows"] and len(place) > 1:
        place[:2] = [f"row {table['rows'][int(place[1])]['name']!r}"]
    return "".join(f", {one}" for one in place) + f": {message}"
