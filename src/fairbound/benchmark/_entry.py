"""Entries of a study: a method with its settings, and on a table what it trains with in the place
of the problem's own.

    [[entries]]
    name = "My method"
    method = "my_file.py:MyMethod"     # or a name of `fairbound.algorithms`
    settings = { rho = 2.0 }           # the class's defaults for the rest
    primal = { name = "Adam", lr = 0.01 }
            # how x moves, for a multiplier method; else the problem's, or its own step
    space = { tau = [0.01, 1.0], eta = [0.001, 1.0] }

Rule sets: *default* is one setting for all problems, by intent the class's own. *tuned* draws
`TUNING_POINTS` points of the entry's space for every problem and takes the best on other seeds than
the scored ones. *self-tuning* is anything inside `update`, without settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from scipy.stats import qmc

from fairbound.algorithms import ALGORITHMS, Adaptive, primal
from fairbound.algorithms.schedules import Exponential, Factorial, InverseSqrt, Linear, Power
from fairbound.benchmark._custom_algorithm import load_custom_algorithm
from fairbound.benchmark._user_files import (
    KNOWN_KEYS_ONLY,
    Count,
    Size,
    Text,
    keyed_by,
    known_name,
    one_of,
)
from fairbound.benchmark.problems.table import NotionName
from fairbound.core import Algorithm, MultiplierMethod, Primal, Schedule

SCHEDULES: dict[str, type[Schedule] | type[Adaptive]] = {
    kind.__name__: kind for kind in (InverseSqrt, Power, Linear, Exponential, Factorial, Adaptive)
}
# what a method or a primal step calls its step
STEP_SETTINGS = (("lr",), ("eta_f", "eta_c"), ("alpha",), ("tau",))
_PRIMALS = {"Adam": primal.Adam, "SGD": primal.SGD}
RUN = "run"  # means the number of steps of the run in a schedule that ends with it
TRAINING_POOLS = ("train", "dual")  # no training step reads the examples that choose or test
TUNING_POINTS, TUNING_SEEDS = 20, (100, 101, 102)
MAX_DIMENSIONS = 5
USUAL_STEPS = 1000  # of a method that is made to look at it
LOSSES = ("loss", "violation")  # of the appendix's tables
PAPER_METRICS = ("Ind", "Sp", "Ina", "Sf", "Wd")  # of the paper's fairness table

Rules = Literal["default", "tuned", "self-tuning"]
Pool = Annotated[str, one_of("pool of a training step", TRAINING_POOLS)]


class Printed(NamedTuple):
    """A number of the paper."""

    mean: Annotated[float, Field(strict=True, allow_inf_nan=False)]
    std: Size  # over runs


@dataclass(frozen=True, config=KNOWN_KEYS_ONLY)
class Paper:
    """What the paper prints for an entry; empty where it prints nothing."""

    validation: Annotated[Mapping[str, Printed], keyed_by(*LOSSES, needed=LOSSES)] = Field(
        default_factory=dict
    )
    train: Annotated[Mapping[str, Printed], keyed_by(*PAPER_METRICS, needed=PAPER_METRICS)] = Field(
        default_factory=dict
    )
    test: Annotated[Mapping[str, Printed], keyed_by(*PAPER_METRICS, needed=PAPER_METRICS)] = Field(
        default_factory=dict
    )


@dataclass(frozen=True, config=KNOWN_KEYS_ONLY)
class Entry:
    """A method as it is entered: a row of a table, a line of a board."""

    name: Text
    method: Text  # a name of ALGORITHMS, or FILE:CLASS
    # numbers, truth values, tables that name a schedule
    settings: Mapping[str, Any] = Field(default_factory=dict)
    # how x moves: name, "Adam" or "SGD", and its settings
    primal: Mapping[str, Any] = Field(default_factory=dict)
    # low and high, of positive numbers
    space: Mapping[str, tuple[float, float]] = Field(default_factory=dict)
    rules: Rules = "default"
    authors: str = ""
    # On a table, in the place of the problem's
    steps: Count | None = None  # the paper's seconds as steps
    # examples of a draw's objective, and of each group for its constraints
    batch: Count | None = None
    notion: NotionName | None = None
    bound: Size | None = None  # 0 for the penalized problem, eq. (13)
    fairret: Size = 0.0  # weight of the Fairret regularizer; 0 for none
    # of the examples that each draw's constraints read; empty: "train"
    pools: tuple[Pool, ...] = ()
    # What the paper says of it
    reference: str = ""  # where its numbers stand
    paper: Paper = Paper()
    note: str = ""  # where the paper contradicts itself, or is ambiguous
    equal_examples: Annotated[bool, Field(strict=True)] = (
        True  # whether it has a place in that budget, where its own steps do not count
    )

    @model_validator(mode="after")
    def _builds(self) -> Entry:
        """The ranges of the settings are checked by the method itself."""
        if len(self.space) > MAX_DIMENSIONS:
            raise ValueError(
                f"the space of {self.name!r} has {len(self.space)} dimensions, at most"
                f" {MAX_DIMENSIONS}"
            )
        for name, (low, high) in self.space.items():
            known_name(name, self.algorithm_type.__dataclass_fields__, "setting")  # type: ignore[attr-defined]
            if not 0 < low < high:
                raise ValueError(
                    f"the space of {name} is low < high, both positive, got [{low:g}, {high:g}]"
                )
        if self.primal and not issubclass(self.algorithm_type, MultiplierMethod):
            raise ValueError(
                f"{self.method} has a step of its own, and primal is for multiplier methods;"
                " omit it"
            )
        primal_step(self.primal)
        draws = self.algorithm(self.steps or USUAL_STEPS).draws
        if self.pools and len(self.pools) != draws:
            raise ValueError(
                f"{self.method} draws {draws} times a step, so pools needs {draws} names, got"
                f" {self.pools!r}"
            )
        return self

    @property
    def algorithm_type(self) -> type[Algorithm[Any]]:
        if ":" in self.method:
            return load_custom_algorithm(self.method).method
        return ALGORITHMS[known_name(self.method, ALGORITHMS, "method")]

    def algorithm(self, steps: int) -> Algorithm[Any]:
        """Build the method for runs of this many steps; raises ValueError for settings that it
        refuses.

        >>> Entry(name="SGD", method="SGD", settings={"tau": 0.05}).algorithm(steps=1000)
        SGD(tau=0.05)
        """
        own = dict(load_custom_algorithm(self.method).settings) if ":" in self.method else {}
        try:
            made: Algorithm[Any] = build_with_settings(
                self.algorithm_type, own | dict(self.settings), steps
            )
        except TypeError as error:
            raise ValueError(str(error)) from error
        return made

    def primal_on(self, of_problem: Mapping[str, Any]) -> Primal | None:
        """How x moves: as the entry says, else as the problem does; None: by the method's own
        step."""
        multipliers = issubclass(self.algorithm_type, MultiplierMethod)
        return primal_step(self.primal or of_problem) if multipliers else None

    def moved(
        self, steps: int, of_problem: Mapping[str, Any], rate: float = 1.0
    ) -> tuple[Any, Primal | None]:
        """The method, and how x moves; with this factor of the learning rate, or of the method's
        own step."""
        method, primal = self.algorithm(steps), self.primal_on(of_problem)
        return (at_rate(method, rate), None) if primal is None else (method, at_rate(primal, rate))

    def described(
        self, steps: int, of_problem: Mapping[str, Any] | None = None, rate: float = 1.0
    ) -> str:
        """The method with its settings, and the primal step where it is not the method's own."""
        method, primal = self.moved(steps, of_problem or {}, rate)
        return repr(method) + ("" if primal is None else f" under {primal!r}")

    def tuning_entries(self) -> list[Entry]:
        """The entry at points of its space: a scrambled Sobol sequence in the logarithms, the same
        for every problem.

        A setting that is a schedule keeps its form, and the point is its start.
        """
        if not self.space:
            return [self]
        unit = qmc.Sobol(len(self.space), seed=18).random(32)[:TUNING_POINTS]
        entries = []
        for point in unit:
            values = {
                name: float(f"{low * (high / low) ** float(u):.4g}")
                for u, (name, (low, high)) in zip(point, self.space.items(), strict=True)
            }
            entries.append(replace(self, settings={**self.settings, **self._at(values)}))
        return entries

    def _at(self, values: Mapping[str, float]) -> dict[str, Any]:
        given = self.settings
        return {
            name: {**given[name], "start": value} if isinstance(given.get(name), Mapping) else value
            for name, value in values.items()
        }


def primal_step(description: Mapping[str, Any]) -> Primal | None:
    """
    >>> primal_step({"name": "Adam", "lr": 0.05})
    Adam(lr=0.05, b1=0.9, b2=0.999, eps=1e-08)
    """
    if not description:
        return None
    settings = dict(description)
    kind = _PRIMALS[known_name(str(settings.pop("name", "")), _PRIMALS, "primal")]
    try:
        made: Primal = kind(**settings)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return made


def at_rate(settings: Any, rate: float) -> Any:
    """A method or a primal step whose steps in x are so many times as long.

    >>> at_rate(primal.Adam(lr=0.01), 3.0).lr, at_rate(ALGORITHMS["TrackedSQP"](), 3.0).alpha
    (0.03, Power(start=1.5, power=0.6))
    """
    if rate == 1.0:
        return settings
    names = next(
        (names for names in STEP_SETTINGS if all(hasattr(settings, name) for name in names)), None
    )
    if names is None:
        raise ValueError(
            f"{type(settings).__name__} has no step size called"
            f" {', '.join(names[0] for names in STEP_SETTINGS)}, so its learning rate cannot be"
            " changed"
        )
    return replace(settings, **{name: _times(getattr(settings, name), rate) for name in names})


def _times(step: Any, rate: float) -> Any:
    if isinstance(step, float | int):
        return rate * step
    name = "cap" if isinstance(step, Adaptive) else "start"
    return replace(step, **{name: rate * getattr(step, name)})


def build_with_settings(kind: type[Any], settings: Mapping[str, Any], steps: int) -> Any:
    """A method or a schedule with its settings, for a run of this many steps; a table is a
    schedule.

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
