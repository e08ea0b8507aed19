"""Parts of sentences: a name that was meant, a number of things, where a row is."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST_NAMED = 12


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """The names that are near, whatever their case; where none is, those that there are.

    >>> did_you_mean("Rase", ["race", "sex"]), did_you_mean("income", ["race", "sex"])
    ('did you mean race?', 'there are race, sex')
    """
    names = [str(one) for one in known]
    by_lower = {other.lower(): other for other in reversed(names)}
    near = [by_lower[other] for other in get_close_matches(str(name).lower(), by_lower, n=3)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    more = ", ..." if len(names) > MOST_NAMED else ""
    there = "there is" if len(names) == 1 else "there are"
    return f"{there} {', '.join(names[:MOST_NAMED])}{more}" if names else "there are none"


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "group"), counted(1200, "row")
    ('1 group', '1,200 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sheet_row(index: int) -> str:
    """Where a spreadsheet shows the example with this index, from 0.

    >>> sheet_row(0)
    'row 2, with the header as row 1'
    """
    return f"row {index + 2}, with the header as row 1"
