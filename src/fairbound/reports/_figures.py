"""Figures: a function draws one with matplotlib; `svg` puts it on a page, `write_pdf` into a file.

A drawing function is decorated with `@style()`, starts from `panels` and returns the figure. Its
subfigures are the panels: a page sets them side by side, or below each other on a narrow screen.
The figure's label is its caption. A unit is a pixel of the page. The colors INK to ALERT are those
of the page in light; there they become CSS variables, so that dark and print have theirs. Text
stays text, and a mark with a title shows it under the pointer.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings
from xml.etree import ElementTree

import numpy as np

from fairbound._utils.optional import need

# as in page.css
INK, SOFT, FAINT, LINE, PAPER = "#1d2126", "#5b636d", "#b4bac2", "#e6e9ed", "#ffffff"
DOT, ALERT = "#0072b2", "#d55e00"
VARIABLES = {
    INK: "ink",
    SOFT: "soft",
    FAINT: "faint",
    LINE: "line",
    PAPER: "paper",
    DOT: "dot",
    ALERT: "alert",
}
# Okabe and Ito's palette for all kinds of color vision, without its yellow, which is faint on white
COLORS = (DOT, ALERT, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)
DASHES = ("-", "--", ":", "-.")
FONT_SIZE = 12
STYLE = {
    "font.size": FONT_SIZE,
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
# on the page
DEFAULTS = {
    "font-size": f"{FONT_SIZE}px",
    "text-anchor": "start",
    "fill": "none",
    "stroke-width": "1",
}
UNUSED = ("font-family", "stroke-linejoin", "stroke-linecap", "stroke-dashoffset")
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")  # that no XML may hold
# sixteenths: where error bars are not, first
TURNS = (2, 14, 6, 10, 1, 15, 7, 9, 3, 13, 5, 11, 0, 8, 4, 12)
STUB = 14  # length of an error bar that leaves the axes


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


def short_lines(name: str, width: int) -> str:
    """A name in one line or two, without the middle of a long one.

    >>> short_lines("American Indian alone, female", 22)
    'American Indian alone,\\nfemale'
    """
    if len(name) <= width:
        return name
    for separator in (", ", " "):  # between attributes rather than inside one
        at = name.rfind(separator, 0, width + 1)
        start, rest = name[: at + 1].rstrip(), name[at + len(separator) :]
        if at > 0 and len(rest) <= width:
            return f"{start}\n{rest}"
    return f"{name[:width]}\n\u2026{name[1 - width :]}"


# Error bars and labels ----------------------------------------------------------------------------


def error_bars(
    axes: Any,
    at: tuple[float, float],
    x_ends: Ends | None = None,
    y_ends: Ends | None = None,
    color: str = INK,
) -> None:
    """A bar between two ends along x, y or both; a side that leaves the axes is a short arrow from
    the point instead.

    The limits of the axes are set before.
    """
    x: list[float] = []
    y: list[float] = []
    for ends, limits, is_x in ((x_ends, axes.get_xlim(), True), (y_ends, axes.get_ylim(), False)):
        if ends is None:
            continue
        low, high = sorted(limits)
        inside = [low <= end <= high for end in ends]
        reach = [end if there else at[not is_x] for end, there in zip(ends, inside, strict=True)]
        x += [*(reach if is_x else (at[0], at[0])), math.nan]
        y += [*(reach if not is_x else (at[1], at[1])), math.nan]
        for sign, there in zip((-1, 1), inside, strict=True):
            if not there:
                tip = [(0, 0), (0, sign), (-0.2, 0.7 * sign), (0, sign), (0.2, 0.7 * sign)]
                arrow = need("matplotlib.path", "report", "A figure").Path(
                    [p[::-1] for p in tip] if is_x else tip
                )
                mark = {
                    "marker": arrow,
                    "markersize": 2 * STUB,
                    "markerfacecolor": "none",
                    "markeredgecolor": color,
                }
                axes.plot(*at, **mark, linestyle="none", zorder=1.9)
    axes.plot(x[:-1], y[:-1], color=color, linewidth=1, zorder=1.9, clip_on=False)


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
    left, bottom, right, top = axes.get_window_extent().extents * scale
    places = axes.transData.transform(points) * scale
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    for point, (x, y), name, color in zip(points, places, names, colors, strict=True):
        settings = {
            "textcoords": "offset points",
            "ha": "center",
            "va": "center",
            "color": color,
            "zorder": 4,
        }
        text = axes.annotate(name, point, (0, 0), **settings)
        extent = text.get_window_extent()
        text.remove()
        width, height = extent.width / 2 * scale + 2, extent.height / 2 * scale
        candidates = []
        for distance, turn in product((9, 18, 30, 45, 65, 90, 120, 160, 210), TURNS):
            angle = math.tau * turn / 16
            offset = (distance + width) * math.cos(angle), (distance + height + 2) * math.sin(angle)
            area = (
                x + offset[0] - width,
                y + offset[1] - height,
                x + offset[0] + width,
                y + offset[1] + height,
            )
            if left <= area[0] and area[2] <= right and bottom <= area[1] and area[3] <= top:
                candidates.append(
                    (sum(_overlap(area, other) for other in taken), distance, offset, area)
                )
        nowhere = (0.0, 0, (0.0, 0.0), (x, y, x, y))
        _, distance, offset, area = min(
            candidates, key=lambda candidate: candidate[:2], default=nowhere
        )
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4}
        text = axes.annotate(
            name, point, offset, **settings, arrowprops=line if distance > 18 else None
        )
        text.set_in_layout(False)
        taken.append(area)


def _overlap(a: Sequence[float], b: Sequence[float]) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


# SVG for a page -----------------------------------------------------------------------------------


@style()
def svg(figure: Any, prefix: str = "figure") -> str:
    """An <svg> element for each panel, small: without metadata, ids that nothing refers to, or
    digits nobody sees.

    prefix: of ids, another one for each figure of a page.
    """
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    text = re.sub(r' xmlns="[^"]*"', "", CONTROL.sub("?", written.getvalue())).replace(
        "xlink:href", "href"
    )
    ids = {
        name: f"{prefix}-{i}"
        for i, name in enumerate(dict.fromkeys(re.findall(r'(?:url\(|href=")#(\w+)', text)))
    }
    text = re.sub(r"#(\w+)", lambda found: f"#{ids.get(found[1], found[1])}", text)
    root = ElementTree.fromstring(text)
    groups = {group.get("id"): group for group in root.iter("g")}
    parts = [part for part in root if part.tag == "defs"]  # clip paths, in the first panel
    elements = []
    for number, panel in enumerate(figure.subfigs, start=1):
        words = (
            []
            if panel.axes
            else [part.get_window_extent() for part in (*panel.legends, *panel.texts)]
        )
        boxes = words or [panel.bbox]  # a panel of words is as high as they are
        top, bottom = max(box.y1 for box in boxes), min(box.y0 for box in boxes)
        size = {
            "viewBox": _rounded(
                f"{panel.bbox.x0} {figure.bbox.height - top} {panel.bbox.width} {top - bottom}", 1
            )
        }
        element = ElementTree.Element("svg", size)
        element.extend([*parts, groups[f"subfigure_{number}"]])
        _shrink(element, ids)
        elements.append(ElementTree.tostring(element, encoding="unicode").replace(" />", "/>"))
        parts = []
    return "\n".join(elements)


def _shrink(parent: ElementTree.Element, ids: Mapping[str, str]) -> None:
    """In place: groups without a meaning dissolve, styles and numbers get short."""
    children: list[ElementTree.Element] = []
    for child in parent:
        if child.tag == "style":
            continue
        _shrink(child, ids)
        child.tail = None
        child.text = child.text if child.tag in ("text", "tspan") else None
        name, settings = child.attrib.pop("id", ""), _short_style(child.attrib.pop("style", ""))
        is_empty = child.tag == "path" and (
            not settings or not re.search("[LCQ]", child.get("d", ""))
        )
        if is_empty and parent.tag != "defs":
            continue  # a background without a color, or a line through one point
        if child.tag == "text":
            settings = settings.replace("fill:var(--ink)", "").strip(";")
            anchor = re.fullmatch("text-anchor:(\\w+)", settings)
            child.attrib |= {"text-anchor": anchor[1]} if anchor else {}
            settings = "" if anchor else settings
        if child.tag == "use" and "fill" in settings:
            # the mark has its stroke
            settings = ";".join(part for part in settings.split(";") if part.startswith("fill"))
        for key in ("x", "y", "width", "height", "transform"):
            if key in child.attrib:
                child.set(key, _rounded(child.attrib[key], 1))
        if "d" in child.attrib:
            child.set(
                "d", _rounded(child.attrib["d"], 2 if re.search("[CQ]", child.attrib["d"]) else 1)
            )
        if child.get("transform", "").startswith("rotate(0 "):
            del child.attrib["transform"]
        child.attrib |= ({"style": settings} if settings else {}) | (
            {"id": ids[name]} if name in ids else {}
        )
        if name.startswith(TITLE):
            title = ElementTree.Element("title")
            title.text = name.removeprefix(TITLE)
            (child[0] if len(child) == 1 else child).insert(0, title)
        is_bare = (
            child.tag == "g"
            and not child.attrib
            and (len(child) == 1 or not name.startswith(TITLE))
        )
        children += child if is_bare else [child]
    parent[:] = children


def _rounded(text: str, digits: int) -> str:
    text = re.sub(
        r"-?\d+\.\d+(e-\d+)?",
        lambda found: f"{float(found[0]):.{digits}f}".rstrip("0").rstrip("."),
        text,
    )
    return re.sub(r"\s*([A-Zz])\s*", r"\1", text).replace("-0 ", "0 ").strip()


def _short_style(text: str) -> str:
    """Without what the page sets for all figures: the font, no fill; colors that have a variable
    there become it."""
    parts = dict(
        part.strip().split(": ", 1)
        for part in re.sub(r"'[^']*'", "", text).split(";")
        if ": " in part
    )
    text = ";".join(
        f"{key}:{value}"
        for key, value in parts.items()
        if DEFAULTS.get(key) != value and key not in UNUSED
    )
    return re.sub(
        "#[0-9a-f]{6}",
        lambda color: f"var(--{VARIABLES[color[0]]})" if color[0] in VARIABLES else color[0],
        text,
    )
