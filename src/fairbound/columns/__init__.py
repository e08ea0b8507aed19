"""The border with the user: columns of any kind become numbers, 0 and 1, groups; files become
columns."""

from fairbound.columns._attributes import (
    Against,
    Attribute,
    Banded,
    Coded,
    Grouping,
    Intersection,
)
from fairbound.columns._column import Column
from fairbound.columns._groups import group_numbers
from fairbound.columns._labels import binary, binary_like, two_values
from fairbound.columns._read import read_columns
from fairbound.columns._specs import parse_attribute, parse_attributes

__all__ = [
    "Against",
    "Attribute",
    "Banded",
    "Coded",
    "Column",
    "Grouping",
    "Intersection",
    "binary",
    "binary_like",
    "group_numbers",
    "parse_attribute",
    "parse_attributes",
    "read_columns",
    "two_values",
]
