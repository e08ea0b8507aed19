"""Figures: a function draws one with matplotlib; `svg` puts it on a page, `write_pdf` into a file.

A drawing function is decorated with `@style()`, starts from `panels` and returns the figure. Its
subfigures are the panels: a page sets them side by side, or below each other on a narrow screen.
The figure's label is its caption. A unit is a pixel of the page. The colors INK to ALERT are those
of the page in light; page.css replaces them in dark. Text stays text, and a mark with a title shows
it under the pointer.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

import numpy as np

from fairbound._utils.optional import need
from fairbound.reports._words import visible

# as in page.css
INK, SOFT, FAINT, LINE, PAPER = "#1d2126", "#5b636d", "#b4bac2", "#e6e9ed", "#ffffff"
DOT, ALERT = "#0072b2", "#d55e00"
# Okabe and Ito's palette for all kinds of color vision, without its yellow, which is faint on white
COLORS = (DOT, ALERT, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)
DASHES = ("-", "--", ":", "-.")
FONT_SIZE = 12
STYLE = {
    "font.size": FONT_SIZE,
    "font.family": ["DejaVu Sans"],  # one name: it stands at every text
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": FONT_SIZE,
    "xtick.labelsize": FONT_SIZE,
    "ytick.labelsize": FONT_SIZE,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "grid.color": LINE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "lines.solid_capstyle": "butt",
    "lines.linewidth": 1.5,
    "lines.scale_dashes": False,
    "lines.dashed_pattern": (5, 2),
    "lines.dotted_pattern": (1, 2),
    "lines.dashdot_pattern": (6, 2, 1, 2),
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "grid.linewidth": 1,
    "axes.linewidth": 1,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fairbound",
    "pdf.fonttype": 42,
}
Ends = tuple[float, float]
TITLE = "title: "  # how a group's id begins that becomes a title
STUBS = ((0, 1), (3, 2))  # matplotlib's markers TICKLEFT, TICKRIGHT; TICKDOWN, TICKUP
# sixteenths: where error bars are not, first
TURNS = (2, 14, 6, 10, 1, 15, 7, 9, 3, 13, 5, 11, 0, 8, 4, 12)
DISTANCES = (9, 18, 30, 45, 65, 90, 120, 160, 210)  # of a label from its point


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's settings for drawing and writing."""
    with need("matplotlib", "report", "A figure").rc_context(STYLE), catch_warnings():
        filterwarnings("ignore", "Glyph .* missing")  # on a page the browser has the glyph
        yield


def panels(count: int, width: float, height: float, columns: int = 3) -> tuple[Any, list[Any]]:
    """A figure, and its panels (subfigures) of this size, row by row."""
    columns = min(columns, max(count, 1))
    rows = max(-(-count // columns), 1)
    size = (columns * width / 72, rows * height / 72)
    figure = need("matplotlib.figure", "report", "A figure").Figure(
        size, dpi=72, layout="constrained"
    )
    grid = figure.add_gridspec(rows, columns)
    return figure, [figure.add_subfigure(grid[divmod(place, columns)]) for place in range(count)]


def titled(artist: Any, title: str) -> Any:
    """The artist, with a text that the page shows under the pointer."""
    artist.set_gid(TITLE + title)
    return artist


def write_pdf(figure: Any, path: Path) -> None:
    """The same figure gives the same file."""
    with style():
        figure.savefig(path, format="pdf", metadata={"CreationDate": None})
    figure.set_layout_engine("none")  # all places are known now


def legend(panel: Any, axes: Sequence[Any], **settings: Any) -> None:
    """Every label of these axes once, in a panel of its own or outside of a panel's axes."""
    entries: dict[str, Any] = {}
    for part in axes:
        handles, labels = part.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    panel.legend(entries.values(), entries.keys(), **({"loc": "center left"} | settings))


def look(place: int) -> dict[str, str]:
    """Color and dashes of one of many lines."""
    return {
        "color": COLORS[place % len(COLORS)],
        "linestyle": DASHES[place // len(COLORS) % len(DASHES)],
    }


def thinned(count: int, most: int) -> Any:
    """Places of at most so many points, the first and the last among them: a curve needs no
    more."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


# Error bars and labels ----------------------------------------------------------------------------


def error_bars(
    axes: Any,
    at: tuple[float, float],
    x_ends: Ends | None = None,
    y_ends: Ends | None = None,
    color: str = INK,
) -> None:
    """A bar through a point between two ends along x, y or both; a side that leaves the axes is a
    short stub instead: it would be a line across all other points.

    Args:
        axes: whose limits are set before.
        at: the point.
        x_ends: of the bar along x.
        y_ends: of the bar along y.
        color: of both bars.
    """
    limits = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    for direction, ends in enumerate((x_ends, y_ends)):
        if ends is None:
            continue
        low, high = limits[direction]
        line = {"color": color, "linewidth": 1, "zorder": 1.9}
        reach = [end if low <= end <= high else at[direction] for end in ends]
        axes.plot(*((reach, (at[1],) * 2) if direction == 0 else ((at[0],) * 2, reach)), **line)
        for end, stub in zip(ends, STUBS[direction], strict=True):
            if not low <= end <= high:
                axes.plot(*at, marker=stub, markersize=14, **line)


def label_points(
    axes: Any, points: Sequence[tuple[float, float]], names: Sequence[str], colors: Sequence[str]
) -> None:
    """A name beside each point, where it covers neither another name nor a point; a line leads to
    one far away.

    It is called when all else is drawn: the layout is final then.
    """
    figure = axes.get_figure(root=True)
    figure.draw_without_rendering()
    scale = 72 / figure.dpi
    corners = axes.get_window_extent().get_points() * scale  # lower left, upper right
    places = axes.transData.transform(points) * scale
    distance, angle = np.array([*product(DISTANCES, TURNS)]).T * [[1], [math.tau / 16]]
    taken = np.stack([places - 6, places + 6], 1)  # (areas, 2 corners, 2)
    for point, place, name, color in zip(points, places, names, colors, strict=True):
        settings = {"textcoords": "offset points", "ha": "center", "va": "center", "zorder": 4}
        text = axes.annotate(name, point, (0, 0), **settings)
        half = text.get_window_extent().size / 2 * scale + [2, 0]
        text.remove()
        reach = distance[:, None] + half + [0, 2]
        offsets = reach * np.c_[np.cos(angle), np.sin(angle)]
        areas = (place + offsets)[:, None] + [-half, half]
        fits = ((areas >= corners[0]) & (areas <= corners[1])).all((1, 2))
        shared = np.minimum(areas[:, None, 1], taken[:, 1]) - np.maximum(
            areas[:, None, 0], taken[:, 0]
        )
        covered = shared.clip(0).prod(-1).sum(-1)
        best = np.lexsort((distance, covered, ~fits))[0]
        offset, far = (offsets[best], distance[best] > 18) if fits[best] else ((0, 0), False)
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4}
        text = axes.annotate(
            name, point, offset, color=color, **settings, arrowprops=line if far else None
        )
        text.set_in_layout(False)
        taken = np.concatenate([taken, areas[[best]]])


# SVG for a page -----------------------------------------------------------------------------------


@style()
def svg(figure: Any, prefix: str = "figure") -> str:
    """An <svg> element for each panel, as matplotlib writes it, with titles under the pointer;
    colors and fonts are the page's (page.css).

    Args:
        figure: whose panels are written, in their order.
        prefix: of the ids in it, another one for each figure of a page.
    """
    figure.get_layout_engine().execute(figure)
    elements = []
    for place, panel in enumerate(figure.subfigs):
        with need("matplotlib", "report", "A figure").rc_context(
            {"svg.hashsalt": f"{prefix}-{place}"}
        ):
            elements.append(_panel_svg(figure, panel))
    return "\n".join(elements)


def _panel_svg(figure: Any, panel: Any) -> str:
    written = io.StringIO()
    renderer = _page_renderer()(figure.bbox.width, figure.bbox.height, written, image_dpi=72)
    panel.draw(renderer)
    renderer.finalize()
    legends = [part.get_window_extent(renderer) for part in (*panel.legends, *panel.texts)]
    boxes = [panel.bbox] if panel.axes else legends  # a panel of words is as high as they are
    top, bottom = max(box.y1 for box in boxes), min(box.y0 for box in boxes)
    view = panel.bbox.x0, figure.bbox.height - top, panel.bbox.width, top - bottom
    text = written.getvalue()
    drawn = text[text.index(">", text.index("<svg")) + 1 :]
    return f'<svg viewBox="{" ".join(f"{length:g}" for length in view)}">{drawn}'


@cache
def _page_renderer() -> Any:
    """matplotlib's writer of SVG for a part of a page: groups have titles in place of ids, text
    shows all its letters, and there is no metadata."""
    backend = need("matplotlib.backends.backend_svg", "report", "A figure")

    class PageRenderer(backend.RendererSVG):  # type: ignore[misc,name-defined]
        def _write_metadata(self, metadata: Any) -> None: ...

        def _write_default_style(self) -> None: ...

        def open_group(self, s: str, gid: str | None = None) -> None:
            self.writer.start("g")
            if gid and gid.startswith(TITLE):
                self.writer.element("title", text=visible(gid.removeprefix(TITLE)))

        def draw_text(self, gc: Any, x: Any, y: Any, s: str, *args: Any, **settings: Any) -> None:
            super().draw_text(gc, x, y, visible(s), *args, **settings)

    return PageRenderer
