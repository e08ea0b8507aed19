"""Sheets as PDF and PNG, by matplotlib.

A sheet may have a hundred panels, and a benchmark dozens of sheets. matplotlib's own axes take about 25 milliseconds
each to make, as much to lay out, and more to draw: two minutes for a whole report. Here a panel is a few artists of the
figure, in inches at the places that `layout.py` gives, which is about eight times as fast. pyplot, with its global
figures and its choice of a window, is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairbound._utils.optional import need
from fairbound.benchmark.figure_layout import BESIDE, INCH, LEFT, LEGEND, RIGHT, SPOKE, Place, layout
from fairbound.benchmark.figure_specs import Line, Panel, Point, Range, Sheet, lines_of
from fairbound.benchmark.results import Values

FORMATS = ("pdf", "png")
MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v", "cross": "P", "star": "*",
    "x": "X",
}  # fmt: skip
CHARACTER = 0.085  # inches, about, of a letter of a title
TICK = 0.03  # inches
STYLE = {"font.size": 8, "pdf.fonttype": 42, "text.parse_math": False}
TOP = 0.1  # inches above the first panel
COMPRESSION = 4  # of PNG, of 9: beyond it files hardly get smaller


class Box(NamedTuple):
    """Of a panel, in inches from the lower left corner."""

    left: float
    bottom: float
    right: float
    top: float

    @property
    def middle(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.bottom + self.top) / 2


def save(sheet: Sheet, folder: Path | str, name: str, *, width: float = 11.0, dpi: int = 110) -> tuple[Path, Path]:
    """Write `name`.pdf and `name`.png, as wide as this many inches; their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pdf, png = (folder / f"{name}.{ending}" for ending in FORMATS)
    with _style():
        figure = _drawn(sheet, width)
        figure.savefig(pdf, metadata={"CreationDate": None})  # the same results make the same file
        figure.savefig(png, dpi=dpi, pil_kwargs={"compress_level": COMPRESSION})
    return pdf, png


def drawn(sheet: Sheet, width: float = 11.0) -> Any:
    """The matplotlib figure."""
    with _style():
        return _drawn(sheet, width)


def _style() -> Any:
    return _matplotlib("matplotlib").rc_context(STYLE)


def _matplotlib(module: str) -> Any:
    return need(module, "report", "A figure as PDF or PNG")


def _drawn(sheet: Sheet, width: float) -> Any:
    plan = layout(sheet, width * INCH)
    margins = (LEFT + RIGHT + (BESIDE if plan.beside else 0)) / INCH
    below, inner = (0 if plan.beside else LEGEND) / INCH, plan.height / INCH
    pencil = Pencil(_matplotlib("matplotlib.figure").Figure(figsize=(width, below + inner + TOP)))
    for panel, place in zip(sheet.panels(), plan.places, strict=True):
        box = _box(place, width - margins, inner, below)
        _title(pencil, panel, box, plan.across)
        _draw_spider(pencil, panel, box) if panel.spokes else _draw_panel(pencil, panel, box)
    pencil.finish(beside=plan.beside)
    return pencil.figure


def _box(place: Place, width: float, height: float, below: float) -> Box:
    left = LEFT / INCH
    (x0, x1), (y0, y1) = place
    return Box(left + x0 * width, below + y0 * height, left + x1 * width, below + y1 * height)


class Pencil:
    """Draws on a figure in inches, and gathers what is drawn at once: thin strokes, and the legend."""

    def __init__(self, figure: Any) -> None:
        self.figure = figure
        self.lines = _matplotlib("matplotlib.lines")
        self.patches = _matplotlib("matplotlib.patches")
        self.transforms = _matplotlib("matplotlib.transforms")
        self.grid: list[Values] = []  # (points, 2) each
        self.frame: list[Values] = []
        self.legend: dict[str, dict[str, Any]] = {}  # style by label

    def text(self, x: float, y: float, words: str, **style: Any) -> None:
        self.figure.text(x, y, words, transform=self.figure.dpi_scale_trans, **style)

    def line(self, x: Values, y: Values, box: Box, *, label: str = "", **style: Any) -> None:
        """Joined points, or markers; what leaves the box is cut off."""
        self.add(self.lines.Line2D(x, y, **style), box)
        if label:
            self.legend.setdefault(label, style)

    def area(self, x: Values, y: Values, box: Box, *, color: str, alpha: float) -> None:
        self.add(self.patches.Polygon(np.column_stack([x, y]), color=color, alpha=alpha, linewidth=0), box)

    def add(self, artist: Any, box: Box) -> None:
        artist.set_transform(self.figure.dpi_scale_trans)
        self.figure.add_artist(artist)
        corners = self.transforms.Bbox.from_extents(*box)
        artist.set_clip_box(self.transforms.TransformedBbox(corners, self.figure.dpi_scale_trans))

    def finish(self, beside: bool) -> None:
        collections = _matplotlib("matplotlib.collections")
        for strokes, color, below in ((self.grid, "0.9", 0), (self.frame, "black", 3)):
            style = {"colors": color, "linewidths": 0.6, "zorder": below, "transform": self.figure.dpi_scale_trans}
            self.figure.add_artist(collections.LineCollection(strokes, **style))
        handles = [self.lines.Line2D([], [], **style) for style in self.legend.values()]
        place = {"loc": "center right"} if beside else {"loc": "lower center", "ncols": min(max(len(handles), 1), 6)}
        labels = ["\n".join(lines_of(label, 26)) for label in self.legend]
        self.figure.legend(handles, labels, frameon=False, fontsize=9, **place)


def _title(pencil: Pencil, panel: Panel, box: Box, across: int) -> None:
    if panel.title:
        above = (SPOKE if panel.spokes else 4) / INCH
        words = "\n".join(lines_of(panel.title, across))
        pencil.text(box.middle[0], box.top + above, words, ha="center", va="bottom", fontsize=9)


# Panels with two axes -------------------------------------------------------------------------------------------------


def _draw_panel(pencil: Pencil, panel: Panel, box: Box) -> None:
    _draw_axes(pencil, panel, box)
    for line in panel.lines:
        _draw_line(pencil, line, panel, box)
    for point in panel.points:
        _draw_point(pencil, point, panel, box)
    for limit in panel.limits:
        level = _up([limit, limit], panel, box)
        style = {"color": "black", "linewidth": 0.8, "linestyle": (0, (4, 3))}
        pencil.line(np.array([box.left, box.right]), level, box, label="bound", **style)


def _draw_axes(pencil: Pencil, panel: Panel, box: Box) -> None:
    few = bool(panel.lines)
    across, up = _ticks(panel.x_range, 3 if few else 6), _ticks(panel.y_range, 4 if few else 6)
    if panel.y_ticks:
        up = [(at, words) for at, words in panel.y_ticks if panel.y_range[0] <= at <= panel.y_range[1]]
    for x, (_, words) in zip(_along([at for at, _ in across], panel, box), across, strict=True):
        pencil.grid.append(np.array([[x, box.bottom], [x, box.top]]))
        pencil.frame.append(np.array([[x, box.bottom], [x, box.bottom - TICK]]))
        if panel.x_label:
            pencil.text(x, box.bottom - 2 * TICK, words, ha="center", va="top")
    for y, (_, words) in zip(_up([at for at, _ in up], panel, box), up, strict=True):
        pencil.grid.append(np.array([[box.left, y], [box.right, y]]))
        pencil.frame.append(np.array([[box.left, y], [box.left - TICK, y]]))
        if panel.y_label:
            pencil.text(box.left - 2 * TICK, y, words, ha="right", va="center")
    pencil.frame.append(np.array([[box.left, box.top], [box.left, box.bottom], [box.right, box.bottom]]))
    x, y = box.middle
    pencil.text(x, box.bottom - 0.2, panel.x_label, ha="center", va="top")
    sideways = "\n".join(lines_of(panel.y_label, int((box.top - box.bottom) / CHARACTER)))
    pencil.text(box.left - 0.38, y, sideways, ha="right", va="center", rotation=90)


def _ticks(ends: Range, most: int) -> list[tuple[float, str]]:
    """Round numbers between the ends, with their words; thousands with a k.

    >>> _ticks((0.0, 25000.0), 3)
    [(0.0, '0'), (10000.0, '10k'), (20000.0, '20k')]
    """
    ticker = _matplotlib("matplotlib.ticker")
    found = ticker.MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(*ends)
    inside = [float(at) for at in found if ends[0] <= at <= ends[1]]
    if ends[1] >= 1000:
        return [(at, f"{at / 1000:g}k" if at else "0") for at in inside]
    digits = max((len(f"{at:g}".partition(".")[2]) for at in inside), default=0)
    return [(at, f"{at + 0.0:.{digits}f}" if digits <= 4 else f"{at:g}") for at in inside]


def _along(x: Sequence[float] | Values, panel: Panel, box: Box) -> Values:
    """Inches."""
    low, high = panel.x_range
    return box.left + (np.asarray(x, dtype=np.float64) - low) / (high - low) * (box.right - box.left)


def _up(y: Sequence[float] | Values, panel: Panel, box: Box) -> Values:
    """Inches."""
    low, high = panel.y_range
    return box.bottom + (np.asarray(y, dtype=np.float64) - low) / (high - low) * (box.top - box.bottom)


def _draw_line(pencil: Pencil, line: Line, panel: Panel, box: Box) -> None:
    x, style = _along(line.x, panel, box), {"drawstyle": "steps-post" if line.steps else "default"}
    pencil.line(x, _up(line.y, panel, box), box, label=line.label, color=line.color, linewidth=1.2, **style)
    if line.band is not None:
        low, high = (_up(ends, panel, box) for ends in line.band)
        there = np.isfinite(low) & np.isfinite(high)  # a polygon has no holes
        around = np.concatenate([x[there], x[there][::-1]]), np.concatenate([low[there], high[there][::-1]])
        if there.any():
            pencil.area(*around, box, color=line.color, alpha=0.25)


def _draw_point(pencil: Pencil, point: Point, panel: Panel, box: Box) -> None:
    wide = [point.x - point.x_error, point.x, point.x + point.x_error]
    tall = [point.y - point.y_error, point.y, point.y + point.y_error]
    (left, x, right), (bottom, y, top) = _along(wide, panel, box), _up(tall, panel, box)
    thin: dict[str, Any] = {"color": point.color, "linewidth": 1.0}
    pencil.line(np.array([left, right]), np.array([y, y]), box, **thin)
    pencil.line(np.array([x, x]), np.array([bottom, top]), box, **thin)
    marker: dict[str, Any] = {"color": point.color, "marker": MARKERS[point.marker], "markersize": 7}
    pencil.line(np.array([x]), np.array([y]), box, label=point.label, linestyle="none", **marker)


# Spiders --------------------------------------------------------------------------------------------------------------


def _draw_spider(pencil: Pencil, panel: Panel, box: Box) -> None:
    """Spokes clockwise from the top; rings at quarters of the range."""
    center, radius = np.array(box.middle), min(box.right - box.left, box.top - box.bottom) / 2
    angles = np.linspace(0, 2 * np.pi, len(panel.spokes), endpoint=False)
    outwards = np.column_stack([np.sin(angles), np.cos(angles)])
    around = np.linspace(0, 2 * np.pi, 73)
    circle = np.column_stack([np.sin(around), np.cos(around)])
    pencil.grid += [center + radius * share * circle for share in (0.25, 0.5, 0.75, 1.0)]
    for direction, words in zip(outwards, panel.spokes, strict=True):
        pencil.grid.append(np.array([center, center + radius * direction]))
        aside = "center" if abs(direction[0]) < 0.1 else "left" if direction[0] > 0 else "right"
        above = "bottom" if direction[1] > 0.9 else "top" if direction[1] < -0.5 else "center"
        x, y = center + (radius + 2 * TICK) * direction
        pencil.text(x, y, words, ha=aside, va=above)
    low, high = panel.y_range
    for line in panel.lines:
        x, y = (center + radius * ((line.y - low) / (high - low))[:, None] * outwards).T
        style = {"color": line.color, "linewidth": 1.4, "marker": "o", "markersize": 3, "clip_on": False}
        pencil.line(np.append(x, x[0]), np.append(y, y[0]), box, label=line.label, **style)
        there = np.isfinite(x)
        if there.sum() > 2:
            pencil.area(x[there], y[there], box, color=line.color, alpha=0.08)
