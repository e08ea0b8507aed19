"""One axis for many methods, which a method that blew up does not take for itself.

Panels beside each other share an axis so that they can be compared. A run whose loss reached 10^6 would make a flat
line of all the others; it leaves the axis instead, and the caption says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fairbound.benchmark.figure_specs import Range, span
from fairbound.benchmark.results import Values

FAR = 3.0  # widths of what most methods span
ORDINARY = 0.1  # of a loss or a gap of losses: where most lie closer together than this, it counts as their width


class Axis(NamedTuple):
    """What an axis shows."""

    range: Range
    beyond: Mapping[str, Range]  # by method, the extent of those that leave it


def shared(values: Mapping[str, Sequence[Values]], also: Sequence[float] = ()) -> Axis:
    """An axis for the values of all methods and for the numbers in `also`.

    Most methods span the range between the quartiles of their least and of their greatest values. One that goes
    beyond it by more than three times its width does not decide about the axis.

    >>> axis = shared({"A": [np.array([0.4, 0.7])], "B": [np.array([0.5, 0.6])], "C": [np.array([0.4, 9e5])]})
    >>> [round(end, 3) for end in axis.range], dict(axis.beyond)
    ([0.385, 0.715], {'C': (0.4, 900000.0)})
    """
    extents = {name: extent for name, numbers in values.items() if (extent := _extent(numbers)) is not None}
    if not extents:
        return Axis(span(list(also)), {})
    low, high = _most(list(extents.values()), also)
    room = FAR * max(high - low, ORDINARY)
    beyond = {name: (a, b) for name, (a, b) in extents.items() if a < low - room or b > high + room}
    if len(beyond) == len(extents):
        beyond = {}
    shown = [end for name, extent in extents.items() if name not in beyond for end in extent]
    return Axis(span(shown, list(also)), beyond)


def not_finite(values: Mapping[str, Sequence[Values]]) -> list[str]:
    """The methods with a value that no axis can show."""
    return [name for name, numbers in values.items() if not all(np.isfinite(part).all() for part in numbers)]


def _extent(numbers: Sequence[Values]) -> Range | None:
    joined = np.concatenate([np.zeros(0), *(np.ravel(part) for part in numbers)])
    finite = joined[np.isfinite(joined)]
    return (float(finite.min()), float(finite.max())) if len(finite) else None


def _most(extents: Sequence[Range], also: Sequence[float]) -> Range:
    """Between the quartiles of both ends, rounded inwards: of two methods the one that spans less counts."""
    lows, highs = sorted(low for low, _ in extents), sorted(high for _, high in extents)
    inner = math.ceil(0.25 * (len(extents) - 1))
    ends = (lows[inner], highs[len(highs) - 1 - inner], *also)
    return min(ends), max(ends)
