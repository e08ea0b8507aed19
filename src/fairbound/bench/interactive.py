"""Sheets as plotly figures, for a page: the same panels as in `drawing.py`, with numbers under the pointer.

Colours of text and grids are names of the page's own, such as var(--ink), so that light, dark and print give theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from fairbound.bench.curves import Values
from fairbound.bench.sheets import Line, Panel, Point, Sheet, lines_of
from fairbound.extras import need

INCH = 96  # pixels
WIDTH = 1050  # pixels for which titles are wrapped; the page may show the figure wider or narrower
TEXT_LINE, AXIS, GAP = 16, 44, 12  # pixels: a line of a title, numbers and label of an axis, between panels
LEFT, RIGHT, LEGEND = 64, 36, 50  # pixels: margins, room for the legend
BESIDE = 230  # pixels: a legend at the right
SPOKE = 40  # pixels: names of spokes stand outside the rim
LETTER = 8  # pixels, about
TOOLS = 30  # pixels: plotly's buttons at the top
INK = "#000000"  # of a line; on a page the ink of the page
BOUND = {"color": "var(--ink)", "width": 1, "dash": "dash"}


class Place(NamedTuple):
    """Of a panel, as shares of the figure."""

    x: tuple[float, float]
    y: tuple[float, float]


def page_json(sheet: Sheet) -> str:
    """The plotly figure as JSON that may stand inside a script element: no "<" is left in it."""
    text: str = figure(sheet).to_json()
    return text.replace("<", "\\u003c")


def figure(sheet: Sheet) -> Any:
    """The plotly figure."""
    graph = need("plotly.graph_objects", "report", "An interactive figure")
    beside = any(panel.points for panel in sheet.panels())
    across = int((WIDTH - LEFT - (BESIDE if beside else 0)) / sheet.columns / LETTER)
    places, height = _places(sheet, across)
    layout: dict[str, Any] = _style(height, beside) | {"annotations": [], "shapes": []}
    data: list[dict[str, Any]] = []
    for number, (panel, place) in enumerate(zip(sheet.panels(), places, strict=True), start=1):
        if panel.title:
            layout["annotations"].append(_title(panel, place, across))
        layout["shapes"] += [_limit(limit, number) for limit in panel.limits]
        layout |= _polar(panel, place, number) if panel.spokes else _axes(panel, place, number)
        data += _spider(panel, number) if panel.spokes else _traces(panel, number)
    return graph.Figure(_each_named_once(data), layout)  # at once: plotly checks all of it whenever something is added


def _each_named_once(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the legend, where bands have no entry of their own."""
    shown: set[str] = set()
    for trace in data:
        trace["showlegend"] = trace.get("hoverinfo") != "skip" and trace["name"] not in shown
        shown |= {trace["name"]} if trace["showlegend"] else set()
    return data


def _places(sheet: Sheet, across: int) -> tuple[list[Place], int]:
    """Of the panels, and the height of the whole in pixels."""
    tops, bottoms, down = [], [], 0.0
    for row in sheet.rows:
        titles = max(len(lines_of(panel.title, across)) if panel.title else 0 for panel in row)
        spider = SPOKE if row[0].spokes else 0
        down += titles * TEXT_LINE + (8 if titles else 0) + spider
        tops.append(down)
        down += sheet.panel_height * INCH - spider
        bottoms.append(down)
        down += (AXIS if any(panel.x_label for panel in row) else GAP) + spider
    places = []
    for row, top, bottom in zip(sheet.rows, tops, bottoms, strict=True):
        gap = 0.1 if row[0].spokes else 0.03
        width = (1 - gap * (sheet.columns - 1)) / sheet.columns
        for j in range(len(row)):
            left = j * (width + gap)
            places.append(Place((left, min(1.0, left + width)), (max(0.0, 1 - bottom / down), 1 - top / down)))
    return places, round(down) + LEGEND + TOOLS


def _style(height: int, beside: bool) -> dict[str, Any]:
    below = {"orientation": "h", "x": 0.5, "xanchor": "center", "y": 0, "yref": "container", "yanchor": "bottom"}
    return {
        "template": "none", "height": height, "showlegend": True, "legend": {} if beside else below,
        "hovermode": "closest", "margin": {"l": LEFT, "r": RIGHT, "t": TOOLS, "b": LEGEND},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--ink)"},
        "hoverlabel": {"bgcolor": "var(--paper)", "bordercolor": "var(--faint)", "font": {"color": "var(--ink)"}},
        "uirevision": "kept",  # what the legend hides stays hidden when the page is resized
    }  # fmt: skip


def _title(panel: Panel, place: Place, across: int) -> dict[str, Any]:
    return {
        "text": f"<b>{_wrapped(panel.title, across)}</b>", "x": sum(place.x) / 2, "y": place.y[1], "xref": "paper",
        "yref": "paper", "yshift": SPOKE if panel.spokes else 4, "xanchor": "center", "yanchor": "bottom",
        "showarrow": False,
    }  # fmt: skip


def _limit(limit: float, number: int) -> dict[str, Any]:
    return {
        "type": "line", "xref": f"x{number} domain", "yref": f"y{number}", "x0": 0, "x1": 1, "y0": limit, "y1": limit,
        "line": BOUND,
    }  # fmt: skip


def _axes(panel: Panel, place: Place, number: int) -> dict[str, Any]:
    common = {"gridcolor": "var(--line)", "zeroline": False, "fixedrange": True, "ticks": "outside", "ticklen": 3}
    own = {"tickvals": [at for at, _ in panel.y_ticks], "ticktext": [words for _, words in panel.y_ticks]}
    return {
        f"xaxis{number}": common | {
            "domain": place.x, "anchor": f"y{number}", "range": panel.x_range, "nticks": 4 if panel.lines else 7,
            "title": {"text": panel.x_label, "standoff": 4, "font": {"size": 12}}, "showline": True,
            "showticklabels": bool(panel.x_label), "linecolor": "var(--faint)",
            "tickformat": "~s" if panel.x_range[1] >= 1000 else "",
        },
        f"yaxis{number}": common | (own if panel.y_ticks else {"nticks": 5}) | {
            "domain": place.y, "anchor": f"x{number}", "range": panel.y_range, "showticklabels": bool(panel.y_label),
            "title": {"text": _wrapped(panel.y_label, 18), "standoff": 6, "font": {"size": 12}},
        },
    }  # fmt: skip


def _polar(panel: Panel, place: Place, number: int) -> dict[str, Any]:
    low, high = panel.y_range
    return {
        f"polar{number}": {
            "domain": {"x": place.x, "y": place.y}, "bgcolor": "rgba(0,0,0,0)",
            "radialaxis": {
                "range": [low, 1.02 * high], "tickvals": np.linspace(low, high, 5)[1:].tolist(), "ticks": "",
                "showticklabels": False, "showline": False, "gridcolor": "var(--line)",
            },
            "angularaxis": {
                "direction": "clockwise", "rotation": 90, "gridcolor": "var(--line)", "ticks": "", "showline": False,
            },
        }
    }  # fmt: skip


def _traces(panel: Panel, number: int) -> Iterator[dict[str, Any]]:
    axes = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
    for line in panel.lines:
        if line.band is not None:
            yield axes | _band(line, *line.band)
        yield axes | _line(line)
    for point in panel.points:
        yield axes | _point(point, panel)
    if panel.limits:  # shapes have no entry in the legend
        yield axes | {"type": "scatter", "x": [None], "y": [None], "mode": "lines", "line": BOUND, "name": "bound"}


def _line(line: Line) -> dict[str, Any]:
    style = {"color": _ink(line.color), "width": 1.8, "shape": "hv" if line.steps else "linear"}
    return {
        "type": "scatter", "mode": "lines", "x": line.x.tolist(), "y": _numbers(line.y), "line": style,
        "name": _wrapped(line.label, 30), "legendgroup": line.label, "hoverinfo": "text", "hovertext": _words(line),
    }  # fmt: skip


def _words(line: Line) -> list[str]:
    name = escape(line.label, quote=False)
    if line.hover:
        return [f"<b>{name}</b><br>{escape(said, quote=False)}" for said in line.hover]
    words = [f"<b>{name}</b><br>{y:.4g} at {x:.4g}" for x, y in zip(line.x, line.y, strict=True)]
    if line.band is None:
        return words
    return [f"{said}<br>quartiles {low:.4g} to {high:.4g}" for said, low, high in zip(words, *line.band, strict=True)]


def _band(line: Line, low: Values, high: Values) -> dict[str, Any]:
    there = np.isfinite(low) & np.isfinite(high)  # a polygon has no holes
    x, low, high = line.x[there], low[there], high[there]
    return {
        "type": "scatter", "mode": "lines", "x": [*x.tolist(), *x[::-1].tolist()],
        "y": [*low.tolist(), *high[::-1].tolist()], "fill": "toself", "fillcolor": _faint(line.color, 0.25),
        "line": {"width": 0}, "hoverinfo": "skip", "name": _wrapped(line.label, 30), "legendgroup": line.label,
    }  # fmt: skip


def _point(point: Point, panel: Panel) -> dict[str, Any]:
    whisker = {"type": "data", "thickness": 1, "width": 3, "color": _ink(point.color)}
    said = (
        f"<b>{escape(point.label, quote=False)}</b><br>{panel.x_label} {point.x:.4g} ± {point.x_error:.2g}"
        f"<br>loss {point.y:.4g} ± {point.y_error:.2g}"
    )
    return {
        "type": "scatter", "mode": "markers", "x": _numbers([point.x]), "y": _numbers([point.y]),
        "error_x": whisker | {"array": [point.x_error]}, "error_y": whisker | {"array": [point.y_error]},
        "marker": {"color": _ink(point.color), "symbol": point.marker, "size": 10}, "name": _wrapped(point.label, 26),
        "legendgroup": point.label, "hoverinfo": "text", "hovertext": [said],
    }  # fmt: skip


def _spider(panel: Panel, number: int) -> Iterator[dict[str, Any]]:
    spokes = [escape(spoke, quote=False).replace("\n", "<br>") for spoke in panel.spokes]
    for line in panel.lines:
        yield {
            "type": "scatterpolar", "subplot": f"polar{number}", "mode": "lines+markers", "fill": "toself",
            "r": [*_numbers(line.y), *_numbers(line.y[:1])], "theta": [*spokes, spokes[0]],
            "line": {"color": _ink(line.color), "width": 2}, "marker": {"size": 5},
            "fillcolor": _faint(line.color, 0.08), "name": _wrapped(line.label, 30), "legendgroup": line.label,
            "hovertemplate": "%{theta}<br>%{r:.0%} of it",
        }  # fmt: skip


def _wrapped(name: str, width: int) -> str:
    """For plotly, which reads tags."""
    return "<br>".join(escape(line, quote=False) for line in lines_of(name, width))


def _ink(color: str) -> str:
    return "var(--ink)" if color == INK else color


def _faint(color: str, share: float) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


def _numbers(values: Sequence[float] | Any) -> list[float | None]:
    """JSON has no NaN."""
    return [float(value) if np.isfinite(value) else None for value in values]
