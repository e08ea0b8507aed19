"""The code book of the American Community Survey: what the codes of its columns mean.

`codebook.csv` holds the variables of the five tasks (`fairbound.data._tasks`) and the usual
protected attributes, as facts from the US Census Bureau's data dictionary of the 2018 1-year person
file (public domain), extracted by `tools/make_codebook.py`. Three kinds of variables: `codes` that
are listed, `number`s with a range, and `areas`, whose codes depend on the state and are not listed.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from fairbound._utils.sentences import did_you_mean
from fairbound.columns._attributes import Attribute, Banded, Coded

# Where a number is cut by default: ages as labor statistics publish them; 35 hours are full-time
# work for the Census Bureau; 30,000 and 50,000 dollars and 20 minutes are the tasks' own
# thresholds; 100 percent is the poverty line.
EDGES = MappingProxyType(
    {
        "AGEP": (25, 35, 45, 55, 65),
        "WKHP": (20, 35, 41, 60),
        "PINCP": (15_000, 30_000, 50_000, 100_000),
        "JWMNP": (10, 20, 30, 45, 60),
        "POVPIP": (100, 200, 400),
    }
)


@dataclass(frozen=True)
class Range:
    """A code (low = high), or a stretch of numbers."""

    low: int
    high: int
    label: str


@dataclass(frozen=True)
class Variable:
    """One column of the person file."""

    name: str
    kind: str  # "codes", "number" or "areas"
    title: str
    values: tuple[Range, ...]  # ascending
    blank: str | None  # the label of "not applicable", where the column may be empty

    def holds(self, value: float) -> bool:
        """Whether the code book has this value."""
        return any(part.low <= value <= part.high for part in self.values)


def variables() -> tuple[str, ...]:
    """The names of all variables in the code book.

    >>> variables()[:4]
    ('AGEP', 'COW', 'SCHL', 'MAR')
    """
    return tuple(_book())


def variable(name: str) -> Variable:
    """What the code book says about one column.

    >>> variable("COW").title
    'Class of worker'
    """
    if name not in _book():
        raise ValueError(f"the code book has no variable {name!r}; {did_you_mean(name, _book())}")
    return _book()[name]


def attribute(
    name: str, edges: Sequence[float] | None = None, missing: int | None = None
) -> Attribute:
    """Make a protected attribute of a variable: its codes, or, for a number or where edges are
    given, bands.

    Empty fields are a separate level; for bands over NaN, say so:
    `dataclasses.replace(bands, missing=True)`.

    Args:
        name: the variable, such as "MAR".
        edges: where a number is cut; the usual bands if not given.
        missing: the number that encodes an empty field in the rows at hand (tables are loaded with
            0 by default); None: empty fields are NaN.

    >>> attribute("MAR").labels[:2]
    ('Married', 'Widowed')
    >>> attribute("AGEP", edges=(40,)).labels
    ('< 40', '>= 40')
    >>> attribute("JWMNP", edges=(30,), missing=0).labels  # 0 minutes: those who do not commute
    ('< 1', '1 to < 30', '>= 30')
    """
    definition = variable(name)
    if edges is None and definition.kind == "codes":
        listed = codes(name, missing)
        return Coded(name, tuple(listed), tuple(listed.values()))
    if edges is None and name not in EDGES:
        raise ValueError(
            f"{name} ({definition.title}) has no usual bands, nor does the code book list its"
            f" codes; say where to cut it: edges=(...), or take those that occur:"
            f" Coded.of({name!r}, column)"
        )
    cuts = tuple(EDGES[name] if edges is None else edges)
    fill, lowest = _fill(definition, missing), definition.values[0].low
    if fill is None:
        return Banded(name, cuts)
    if fill > lowest:
        raise ValueError(
            f"{fill} for empty fields lies within the range of {name}; fill with a number below it"
        )
    # one more cut keeps the filled rows out of the lowest band
    return Banded(name, tuple(sorted({lowest, *cuts})))


def codes(name: str, missing: int | None = None) -> dict[int | None, str]:
    """Code -> label in rows whose empty fields were filled with `missing`, the blank last; none for
    numbers and areas.

    >>> codes("SEX"), codes("AGEP")
    ({1: 'Male', 2: 'Female'}, {})
    """
    definition = variable(name)
    fill = _fill(definition, missing)
    if definition.kind != "codes":
        return {}
    listed: dict[int | None, str] = {value.low: value.label for value in definition.values}
    return listed if definition.blank is None else {**listed, fill: definition.blank}


def _fill(definition: Variable, missing: int | None) -> int | None:
    """The number that encodes an empty field of this variable."""
    # a column that is never empty is never filled
    fill = missing if definition.blank is not None else None
    if fill is not None and definition.holds(fill):
        raise ValueError(
            f"{fill} is itself a value of {definition.name} ({definition.title}), so that empty"
            " fields filled with it cannot be distinguished; load the rows with another `missing`"
            " (None keeps NaN)"
        )
    return fill


@cache
def _book() -> dict[str, Variable]:
    """The file, read once, at the first question."""
    titles: dict[str, tuple[str, str]] = {}
    values: dict[str, list[Range]] = {}
    blanks: dict[str, str] = {}
    with files("fairbound.columns").joinpath("codebook.csv").open(encoding="ascii") as lines:
        for line in csv.DictReader(lines):
            name, label = line["variable"], line["label"]
            match line["kind"]:
                case "value":
                    values[name].append(Range(int(line["low"]), int(line["high"]), label))
                case "blank":
                    blanks[name] = label
                case kind:
                    titles[name], values[name] = (kind, label), []
    return {
        name: Variable(name, *titles[name], tuple(values[name]), blanks.get(name))
        for name in titles
    }
