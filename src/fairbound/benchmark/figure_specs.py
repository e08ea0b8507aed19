"""Figures as data: panels in rows, with their lines and points, before anything draws them.

`drawing.py` turns a sheet into PDF and PNG, `interactive.py` into a plotly figure: both show the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap

import numpy as np

from fairbound.benchmark.results import Values

# Okabe and Ito's palette for all kinds of color vision, without its yellow, which is faint on white.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
COLORS = (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9", "#000000")
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star", "x")
# With 8 markers and 7 colors, 56 pairs differ, neighbors in both
Range = tuple[float, float]


@dataclass(frozen=True, eq=False, kw_only=True)
class Line:
    """Points that are joined."""

    label: str
    color: str
    x: Values  # in a panel with spokes the number of the spoke
    y: Values
    band: tuple[Values, Values] | None = None  # around it: low, high
    steps: bool = False  # level between points, as a histogram is
    hover: tuple[str, ...] = ()  # what stands under the pointer at each point, instead of its numbers


@dataclass(frozen=True, eq=False, kw_only=True)
class Point:
    """With a whisker of one standard deviation to each side."""

    label: str
    color: str
    marker: str
    x: float
    y: float
    x_error: float
    y_error: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Panel:
    """Axes without a label show no numbers either: those of a neighbor hold for them."""

    x_range: Range = (0.0, 1.0)
    y_range: Range = (0.0, 1.0)
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    lines: tuple[Line, ...] = ()
    points: tuple[Point, ...] = ()
    y_ticks: tuple[tuple[float, str], ...] = ()  # where numbers of their own choice stand
    limits: tuple[float, ...] = ()  # dashed lines across
    spokes: tuple[str, ...] = ()  # of a spider, whose rings are at quarters of `y_range`; a name may have two lines


@dataclass(frozen=True, eq=False, kw_only=True)
class Sheet:
    """A figure."""

    words: str  # what it shows
    rows: tuple[tuple[Panel, ...], ...]
    panel_height: float  # inches

    @property
    def columns(self) -> int:
        return max(len(row) for row in self.rows)

    def panels(self) -> Iterator[Panel]:
        for row in self.rows:
            yield from row


def lines_of(name: str, width: int) -> list[str]:
    """A name in lines of about this many characters; words longer than that are broken.

    >>> lines_of("Descent-ascent, falling steps", 16)
    ['Descent-ascent,', 'falling steps']
    """
    return wrap(name, width, break_on_hyphens=False) or [""]


def span(*parts: Values | list[float], room: float = 0.05) -> Range:
    """From the least to the greatest finite number, with some room.

    >>> span([0.0, 1.0, float("nan")], room=0.1)
    (-0.1, 1.1)
    """
    joined = np.concatenate([np.ravel(part) for part in parts]) if parts else np.zeros(0)
    finite = joined[np.isfinite(joined)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    extra = room * (high - low) or max(abs(high), 1.0) * room  # a single number has no width
    return low - extra, high + extra
