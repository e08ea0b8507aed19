"""Where the panels of a sheet stand: on paper (`drawing.py`) and on a page (`interactive.py`) alike.

Lengths are in pixels of which 96 are an inch.
"""

from __future__ import annotations

from typing import NamedTuple

from fairbound.benchmark.figure_specs import Sheet, lines_of

INCH = 96
TEXT_LINE, AXIS, GAP = 16, 44, 12  # a line of a title, numbers and label of an axis, between panels
LEFT, RIGHT, LEGEND = 64, 36, 50  # margins, room for a legend below
BESIDE = 230  # a legend at the right
SPOKE = 40  # names of spokes stand outside the rim
LETTER = 8  # about
LEAST = {"lines": 115, "spokes": 200, "points": 260}  # width in which a panel can still be read


class Place(NamedTuple):
    """Of a panel, as shares of what the margins leave; y counts from below."""

    x: tuple[float, float]
    y: tuple[float, float]


class Layout(NamedTuple):
    """Of a sheet's panels, in their order."""

    places: tuple[Place, ...]
    height: float  # of what the margins leave
    across: int  # letters that fit above a panel
    beside: bool  # whether the legend stands at the right
    least: int  # width of the whole below which panels cannot be read


def layout(sheet: Sheet, width: float) -> Layout:
    """For a sheet as wide as this, its margins included.

    >>> from fairbound.benchmark.figure_specs import Panel
    >>> found = layout(Sheet(words="", rows=((Panel(title="a"), Panel(title="b")),), panel_height=1.0), width=500)
    >>> found.height, [tuple(round(end, 3) for end in place.x) for place in found.places]
    (132, [(0.0, 0.485), (0.515, 1.0)])
    """
    beside = any(panel.points for panel in sheet.panels())
    kind = "points" if beside else "spokes" if any(panel.spokes for panel in sheet.panels()) else "lines"
    margins = LEFT + RIGHT + (BESIDE if beside else 0)
    across = int((width - margins) / sheet.columns / LETTER)
    bands, height = _bands(sheet, across)
    places = tuple(
        Place(x, (max(0.0, 1 - bottom / height), 1 - top / height))
        for row, (top, bottom) in zip(sheet.rows, bands, strict=True)
        for x in _columns(len(row), sheet.columns, 0.1 if row[0].spokes else 0.03)
    )
    longest = max(len(line) for panel in sheet.panels() for line in lines_of(panel.title, across))
    return Layout(places, height, across, beside, margins + sheet.columns * max(LEAST[kind], longest * LETTER))


def _bands(sheet: Sheet, across: int) -> tuple[list[tuple[float, float]], float]:
    """Top and bottom of every row of panels, from above, and the height of all."""
    bands, down = [], 0.0
    for row in sheet.rows:
        titles = max(len(lines_of(panel.title, across)) if panel.title else 0 for panel in row)
        spider = SPOKE if row[0].spokes else 0
        top = down + titles * TEXT_LINE + (8 if titles else 0) + spider
        bottom = top + sheet.panel_height * INCH - spider
        bands.append((top, bottom))
        down = bottom + (AXIS if any(panel.x_label for panel in row) else GAP) + spider
    return bands, round(down)


def _columns(count: int, columns: int, gap: float) -> list[tuple[float, float]]:
    width = (1 - gap * (columns - 1)) / columns
    return [(j * (width + gap), min(1.0, j * (width + gap) + width)) for j in range(count)]
