"""Names of protected attributes, the same everywhere.

RACE                       the levels of a column (census: those of the code book)
AGE:25:45:65               a number cut into bands at these edges
RACE=1                     one level against all others (census: also by its label, SEX=Male)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairbound._utils.sentences import did_you_mean
from fairbound.columns import _codebook as codebook
from fairbound.columns._attributes import Against, Attribute, Banded, Coded
from fairbound.columns._column import Column, column_named
from fairbound.columns._labels import meaning

Columns = Mapping[str, Any]  # name -> (rows,)
# letters of a variable that no other table has, such as AGEP or RAC1P, and not SEX
SHORTEST_NAME = 4
# different numbers in a column that is not of the census, above which you must give bands
MOST_NUMBERS = 50


def parse_attribute(
    spec: str, columns: Columns, census: bool = False, missing: int | None = None
) -> Attribute:
    """Find the protected attribute that a specification names.

    Args:
        spec: such as "RACE", "AGE:25:45:65" or "RACE=1".
        columns: (rows,) by name.
        census: whether the columns are those of the census code book.
        missing: the number written into the empty fields of census data; None: they are NaN.

    >>> parse_attribute("AGE:25:65", {"AGE": [30, 70]}).labels
    ('< 25', '25 to < 65', '>= 65')
    >>> parse_attribute("sex", {"sex": ["f", "m"]}).labels
    ('f', 'm')
    """
    name, edges, level = _parsed(spec, columns)
    column = Column.of(column_named(name, columns), name)
    coded = census and name in codebook.variables()
    fill = missing if coded and bool((column.values == missing).any()) else None
    if level is not None:
        codes = codebook.codes(name, fill) if coded else {}
        code = _code(level, column, codes)
        label = codes.get(code, f"{name}={level}")
        return Against(name, code, (label, f"not {label}"))
    if not coded and not edges:
        different = len(column.factorized()[1])
        if column.kind == "number" and different > MOST_NUMBERS:
            raise ValueError(
                f"{name} has {different} different numbers; cut it into bands by giving edges, as"
                f" in {name}:25:45:65"
            )
        return Coded.of(name, column.values)
    attribute = codebook.attribute(name, edges or None, fill) if coded else Banded(name, edges)
    if isinstance(attribute, Banded) and column.missing.any():
        return replace(attribute, missing=True)  # one more level
    return attribute


def parse_attributes(
    specs: str | Sequence[str], columns: Columns, census: bool = False, missing: int | None = None
) -> list[Attribute]:
    """Find several attributes.

    Args:
        specs: a list of specifications, or text that separates them by commas.
        columns: (rows,) by name.
        census: whether the columns are those of the census code book.
        missing: the number written into the empty fields of census data; None: they are NaN.
    """
    return [parse_attribute(spec, columns, census, missing) for spec in one_by_one(specs)]


def is_census_export(specs: str | Sequence[Any], columns: Columns) -> bool:
    """Whether a file has the columns of the American Community Survey, and the named ones hold
    codes of its code book.

    >>> is_census_export("SEX", {"SEX": [1, 2], "RAC1P": [1, 1]})
    True
    >>> is_census_export("SEX", {"SEX": [0, 1], "RAC1P": [1, 1]})
    False
    """
    book = codebook.variables()
    header = getattr(columns, "header", ()) or columns
    if not any(name in book and len(name) >= SHORTEST_NAME for name in header):
        return False
    names = {_parsed(spec, columns)[0] for spec in one_by_one(specs)}
    return all(
        _holds_codes(Column.of(columns[name], name))
        for name in names
        if name in columns and name in book
    )


def _holds_codes(column: Column) -> bool:
    """Whether the code book has every value of the column."""
    return column.kind == "number" and all(
        map(codebook.variable(column.name).holds, column.factorized()[1])
    )


def one_by_one(specs: str | Sequence[Any]) -> list[Any]:
    """The attributes of a list, or of text that separates them by commas.

    >>> one_by_one("SEX, AGEP:25:65")
    ['SEX', 'AGEP:25:65']
    """
    listed = specs.split(",") if isinstance(specs, str) else list(specs)
    trimmed = [spec.strip() if isinstance(spec, str) else spec for spec in listed]
    if not any(spec != "" for spec in trimmed):
        raise ValueError("name at least one protected column")
    return [spec for spec in trimmed if spec != ""]


def _parsed(spec: str, columns: Columns) -> tuple[str, tuple[float, ...], str | None]:
    """Name, edges, level; a column whose name itself holds ':' or '=' is found first."""
    if spec in columns:
        return spec, (), None
    if "=" in spec:
        name, _, level = spec.partition("=")
        return name, (), level
    name, *edges = spec.split(":")
    try:
        return name, tuple(float(edge) for edge in edges), None
    except ValueError as error:
        raise ValueError(
            f"{spec!r}: the edges after ':' must be numbers, as in AGE:25:45:65"
        ) from error


def _code(level: str, column: Column, codes: Mapping[int | None, str]) -> Any:
    """The value of that name; `codes` are those of the code book, whose labels name a level too."""
    if not column.is_numeric:
        return level
    code = meaning(level)  # "1" and "true" as numbers and booleans
    if not isinstance(code, str):
        return code
    numbers = {label.lower(): number for number, label in codes.items() if number is not None}
    if level.strip().lower() in numbers:
        return numbers[level.strip().lower()]
    if codes:
        raise ValueError(
            f"{level!r} is neither a code nor a label of {column.name};"
            f" {did_you_mean(level, codes.values())}"
        )
    raise ValueError(
        f"{column.name} holds {column.kind}s, so {column.name}={level} matches none of them"
    )
