"""Columns of the user: numbers, text, 0/1 labels, groups."""

from fairbound.columns._attributes import (
    Against,
    Attribute,
    Banded,
    Coded,
    Grouping,
    Intersection,
)

__all__ = ["Against", "Attribute", "Banded", "Coded", "Grouping", "Intersection"]
