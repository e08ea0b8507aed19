"""Parts of sentences: a name that was meant, a number of things, which rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

_MOST_NAMED = 12


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """The names that are near or contain it, whatever their case; where none does, those that there
    are.

    >>> did_you_mean("Rase", ["race", "sex"]), did_you_mean("income", ["race", "sex"])
    ('did you mean race?', 'there are race, sex')
    """
    names, text = [str(other) for other in known], str(name).lower()
    by_lower = {other.lower(): other for other in reversed(names)}
    near = [by_lower[other] for other in get_close_matches(text, by_lower, n=3)]
    near = near or [other for other in names if len(text) > 2 and text in other.lower()][:3]
    if near:
        return f"did you mean {' or '.join(near)}?"
    more = ", ..." if len(names) > _MOST_NAMED else ""
    there = "there is" if len(names) == 1 else "there are"
    return f"{there} {', '.join(names[:_MOST_NAMED])}{more}" if names else "there are none"


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "group"), counted(1200, "row")
    ('1 group', '1,200 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[object], most: int = 5) -> str:
    """
    >>> listed(["a", "b", "c"]), listed(list("abcdefgh"), 3)
    ('a, b and c', 'a, b, c and 5 more')
    """
    words = list(map(str, names))
    if len(words) > most + 1:
        words = [*words[:most], f"{len(words) - most:,} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def marked_rows(marked: Any, number: Any = None) -> str:
    """How many rows are marked, and the first of them as a spreadsheet numbers it; `number` is the
    index in the table of each row, where there are some only.

    >>> import numpy
    >>> marked_rows(numpy.array([False, True, True]))
    '2 of 3 rows (first: row 3, with the header as row 1)'
    """
    first = int(marked.argmax() if number is None else number[marked.argmax()])
    return (
        f"{int(marked.sum()):,} of {counted(len(marked), 'row')} (first: row {first + 2}, with the"
        " header as row 1)"
    )
