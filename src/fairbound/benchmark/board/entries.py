"""Entries of a board: a method with its settings and, for the tuned rules, its search space.

    [[entries]]
    name = "My method"
    method = "my_file.py:MyMethod"     # or a name of `fairbound.algorithms`
    settings = { rho = 2.0 }           # one setting for all problems; the class's defaults for the rest
    primal = { name = "Adam", lr = 0.01 }    # how x moves, for a multiplier method; its own step without it
    space = { tau = [0.01, 1.0], eta = [0.001, 1.0] }

Rule sets: *default* is one setting for all problems, by intent the class's own. *tuned* draws `TUNING_POINTS` points
of the entry's space for every problem and takes the best on other seeds than the scored ones. *self-tuning* is
anything inside `update`, without settings.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from scipy.stats import qmc

from fairbound.algorithms import ALGORITHMS, primal
from fairbound.benchmark.config import KNOWN_KEYS_ONLY, Text, build_with_settings, known_name, nearest
from fairbound.benchmark.custom_algorithm import load_custom_algorithm
from fairbound.core import Algorithm, MultiplierMethod, Primal

PRIMALS = {"Adam": primal.Adam, "SGD": primal.SGD}
OURS = Path(__file__).parent / "entries.toml"
TUNING_POINTS, TUNING_SEEDS = 20, (100, 101, 102)
MAX_DIMENSIONS = 5
Rules = Literal["default", "tuned", "self-tuning"]


@dataclass(frozen=True, config=KNOWN_KEYS_ONLY)
class Entry:
    """A method as it is entered."""

    name: Text
    method: Text  # a name of ALGORITHMS, or FILE:CLASS
    settings: Mapping[str, Any] = Field(default_factory=dict)  # numbers, truth values, tables that name a schedule
    primal: Mapping[str, Any] = Field(default_factory=dict)  # how x moves: name, "Adam" or "SGD", and its settings
    space: Mapping[str, tuple[float, float]] = Field(default_factory=dict)  # low and high, of positive numbers
    rules: Rules = "default"
    authors: str = "fairbound"

    @model_validator(mode="after")
    def _builds(self) -> Entry:
        if len(self.space) > MAX_DIMENSIONS:
            raise ValueError(f"the space of {self.name!r} has {len(self.space)} dimensions, at most {MAX_DIMENSIONS}")
        for name, (low, high) in self.space.items():
            known_name(name, self.algorithm_type.__dataclass_fields__, "setting")  # type: ignore[attr-defined]
            if not 0 < low < high:
                raise ValueError(f"the space of {name} is low < high, both positive, got [{low:g}, {high:g}]")
        if self.primal and not issubclass(self.algorithm_type, MultiplierMethod):
            raise ValueError(f"{self.method} has a step of its own, and primal is for multiplier methods; omit it")
        self.described(1000)
        return self

    @property
    def primal_step(self) -> Primal | None:
        if not self.primal:
            return None
        settings = dict(self.primal)
        kind = PRIMALS[known_name(str(settings.pop("name", "")), PRIMALS, "primal")]
        try:
            made: Primal = kind(**settings)
        except TypeError as error:
            raise ValueError(str(error)) from error
        return made

    def described(self, steps: int) -> str:
        """The method with its settings, and the primal step where it is not the method's own."""
        primal = self.primal_step
        return repr(self.algorithm(steps)) + ("" if primal is None else f" under {primal!r}")

    @property
    def algorithm_type(self) -> type[Algorithm[Any]]:
        if ":" in self.method:
            return load_custom_algorithm(self.method).method
        return ALGORITHMS[known_name(self.method, ALGORITHMS, "method")]

    def algorithm(self, steps: int) -> Algorithm[Any]:
        """For runs of this many steps; raises ValueError for settings that the method refuses."""
        own = dict(load_custom_algorithm(self.method).settings) if ":" in self.method else {}
        try:
            made: Algorithm[Any] = build_with_settings(self.algorithm_type, own | dict(self.settings), steps)
        except TypeError as error:
            raise ValueError(str(error)) from error
        return made

    def tuning_entries(self) -> list[Entry]:
        """The entry at points of its space: a scrambled Sobol sequence in the logarithms, the same for every problem.

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


def load_entries(path: Path = OURS) -> tuple[Entry, ...]:
    """All entries of a file; a method's FILE is a path from the folder of it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(f"{path} cannot be read ({error.strerror})") from error
    try:
        table = tomllib.loads(text)
        unknown = [key for key in table if key != "entries"]
        if unknown or not isinstance(table.get("entries"), list):
            raise ValueError("a file of entries is a list of tables, [[entries]], each with a name and a method")
        for one in table["entries"]:
            if isinstance(one.get("method"), str) and ":" in one["method"]:
                one["method"] = str(path.parent.resolve() / one["method"])
        found = TypeAdapter(tuple[Entry, ...]).validate_python(table["entries"])
    except ValidationError as error:
        first = error.errors()[0]
        number = next((part for part in first["loc"] if isinstance(part, int)), 0)
        name = table["entries"][number].get("name", number + 1)
        key = [str(part) for part in first["loc"] if isinstance(part, str)]
        words = first["msg"].removeprefix("Value error, ")
        if first["type"] == "unexpected_keyword_argument":
            known = [field.name for field in fields(Entry)]
            words = f"there is no key {key[-1]!r}; the nearest is {nearest(key[-1], known)!r}"
        raise ValueError(f"{path}, entry {name!r}{f', {key[-1]}' if key else ''}: {words}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no valid TOML: {error}") from error
    refuse_doubled(found)
    return found


def refuse_doubled(entries: Sequence[Entry]) -> None:
    listed = [entry.name for entry in entries]
    for name in listed:
        if listed.count(name) > 1:
            raise ValueError(f"two entries are called {name!r}; results are kept by name, so rename one")


@cache
def ours() -> tuple[Entry, ...]:
    """The methods of this library.

    >>> len({entry.method for entry in ours()}) == len(ALGORITHMS)
    True
    """
    return load_entries(OURS)
