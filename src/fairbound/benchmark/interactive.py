"""Sheets as plotly figures, for a page: the same panels as in `drawing.py`, with numbers under the pointer.

Colors of text and grids are names of the page's own, such as var(--ink), so that light, dark and print give theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from fairbound._utils.optional import need
from fairbound.benchmark.figure_layout import LEFT, LEGEND, RIGHT, SPOKE, Layout, Place, layout
from fairbound.benchmark.figure_specs import Line, Panel, Point, Sheet, lines_of
from fairbound.benchmark.results import Values

WIDTH = 1050  # pixels for which titles are wrapped; the page may show the figure wider or narrower
TOOLS = 30  # pixels: plotly's buttons at the top
DIGITS = 4  # significant ones of a number: more than a picture shows, and the page stays small
INK = "#000000"  # of a line; on a page the ink of the page
END = "<extra></extra>"  # no second box beside what is under the pointer
BOUND = {"color": "var(--ink)", "width": 1, "dash": "dash"}


class Drawing(NamedTuple):
    """What a page needs of a sheet."""

    json: str  # {"data", "wide" (the layout), "least"}; may stand inside a script element: no "<" is left in it
    height: int  # pixels


def drawing(sheet: Sheet) -> Drawing:
    """For `pages.picture`, whose script draws it. Plain JSON: plotly's own figures take longer to make than
    to draw."""
    data, style, plan = _content(sheet)
    content = {"data": data, "wide": style, "least": plan.least}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return Drawing(text.replace("<", "\\u003c"), style["height"])


def figure(sheet: Sheet) -> Any:
    """The plotly figure, for a notebook."""
    graph = need("plotly.graph_objects", "report", "An interactive figure")
    data, style, _ = _content(sheet)
    return graph.Figure(data, style | {"template": "none"})


def _content(sheet: Sheet) -> tuple[list[dict[str, Any]], dict[str, Any], Layout]:
    """Traces and layout as plotly reads them."""
    plan = layout(sheet, WIDTH)
    style: dict[str, Any] = _style(round(plan.height) + LEGEND + TOOLS, plan.beside) | {"annotations": [], "shapes": []}
    data: list[dict[str, Any]] = []
    for at, (panel, place) in enumerate(zip(sheet.panels(), plan.places, strict=True)):
        number = str(at + 1) if at else ""  # plotly's own way to count axes
        if panel.title:
            style["annotations"].append(_title(panel, place, plan.across))
        style["shapes"] += [_limit(limit, number) for limit in panel.limits]
        style |= _polar(panel, place, number) if panel.spokes else _axes(panel, place, number)
        data += _spider(panel, number) if panel.spokes else _traces(panel, number)
    return _each_named_once(data), style, plan


def _each_named_once(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the legend, where bands have no entry of their own."""
    shown: set[str] = set()
    for trace in data:
        trace["showlegend"] = trace.get("hoverinfo") != "skip" and trace["name"] not in shown
        shown |= {trace["name"]} if trace["showlegend"] else set()
    return data


def _style(height: int, beside: bool) -> dict[str, Any]:
    below = {"orientation": "h", "x": 0.5, "xanchor": "center", "y": 0, "yref": "container", "yanchor": "bottom"}
    return {
        "height": height, "showlegend": True, "legend": {} if beside else below,
        "hovermode": "closest", "margin": {"l": LEFT, "r": RIGHT, "t": TOOLS, "b": LEGEND},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--ink)"},
        "hoverlabel": {"bgcolor": "var(--paper)", "bordercolor": "var(--faint)", "font": {"color": "var(--ink)"}},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--faint)", "activecolor": "var(--ink)"},
        "uirevision": "kept",  # what the legend hides stays hidden when the page is resized
    }  # fmt: skip


def _title(panel: Panel, place: Place, across: int) -> dict[str, Any]:
    return {
        "text": f"<b>{_wrapped(panel.title, across)}</b>", "x": sum(place.x) / 2, "y": place.y[1], "xref": "paper",
        "yref": "paper", "yshift": SPOKE if panel.spokes else 4, "xanchor": "center", "yanchor": "bottom",
        "showarrow": False,
    }  # fmt: skip


def _limit(limit: float, number: str) -> dict[str, Any]:
    return {
        "type": "line", "xref": f"x{number} domain", "yref": f"y{number}", "x0": 0, "x1": 1, "y0": limit, "y1": limit,
        "line": BOUND,
    }  # fmt: skip


def _axes(panel: Panel, place: Place, number: str) -> dict[str, Any]:
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


def _polar(panel: Panel, place: Place, number: str) -> dict[str, Any]:
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


def _traces(panel: Panel, number: str) -> Iterator[dict[str, Any]]:
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
        "type": "scatter", "mode": "lines", "x": _numbers(line.x), "y": _numbers(line.y), "line": style,
        "name": _wrapped(line.label, 30), "legendgroup": line.label,
    } | _under_the_pointer(line)  # fmt: skip


def _under_the_pointer(line: Line) -> dict[str, Any]:
    name = "<b>%{fullData.name}</b><br>"
    if line.hover:
        return {"text": [escape(said, quote=False) for said in line.hover], "hovertemplate": name + "%{text}" + END}
    if line.band is None:
        return {"hovertemplate": name + "%{y:.4g} at %{x:,}" + END}
    quartiles = [list(pair) for pair in zip(*map(_numbers, line.band), strict=True)]
    words = "%{y:.4g} at %{x:,}<br>quartiles %{customdata[0]:.4g} to %{customdata[1]:.4g}"
    return {"customdata": quartiles, "hovertemplate": name + words + END}


def _band(line: Line, low: Values, high: Values) -> dict[str, Any]:
    there = np.isfinite(low) & np.isfinite(high)  # a polygon has no holes
    x, low, high = line.x[there], low[there], high[there]
    return {
        "type": "scatter", "mode": "lines", "x": _numbers([*x, *x[::-1]]), "y": _numbers([*low, *high[::-1]]),
        "fill": "toself", "fillcolor": _faint(line.color, 0.25), "line": {"width": 0}, "hoverinfo": "skip",
        "name": _wrapped(line.label, 30), "legendgroup": line.label,
    }  # fmt: skip


def _point(point: Point, panel: Panel) -> dict[str, Any]:
    whisker = {"type": "data", "thickness": 1, "width": 3, "color": _ink(point.color)}
    said = (
        f"<b>{escape(point.label, quote=False)}</b><br>{panel.x_label} {point.x:.4g} ± {point.x_error:.2g}"
        f"<br>loss {point.y:.4g} ± {point.y_error:.2g}"
    )
    return {
        "type": "scatter", "mode": "markers", "x": _numbers([point.x]), "y": _numbers([point.y]),
        "error_x": whisker | {"array": _numbers([point.x_error])},
        "error_y": whisker | {"array": _numbers([point.y_error])},
        "marker": {"color": _ink(point.color), "symbol": point.marker, "size": 10}, "name": _wrapped(point.label, 26),
        "legendgroup": point.label, "hoverinfo": "text", "hovertext": [said],
    }  # fmt: skip


def _spider(panel: Panel, number: str) -> Iterator[dict[str, Any]]:
    spokes = [escape(spoke, quote=False).replace("\n", "<br>") for spoke in panel.spokes]
    for line in panel.lines:
        yield {
            "type": "scatterpolar", "subplot": f"polar{number}", "mode": "lines+markers", "fill": "toself",
            "r": [*_numbers(line.y), *_numbers(line.y[:1])], "theta": [*spokes, spokes[0]],
            "line": {"color": _ink(line.color), "width": 2}, "marker": {"size": 5},
            "fillcolor": _faint(line.color, 0.08), "name": _wrapped(line.label, 30), "legendgroup": line.label,
            "hovertemplate": "<b>%{fullData.name}</b><br>%{theta}<br>%{r:.0%} of it" + END,
        }  # fmt: skip


def _wrapped(name: str, width: int) -> str:
    """For plotly, which reads tags."""
    return "<br>".join(escape(line, quote=False) for line in lines_of(name, width))


def _ink(color: str) -> str:
    return "var(--ink)" if color == INK else color


def _faint(color: str, share: float) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


def _numbers(values: Sequence[float] | Values) -> list[float | None]:
    """With `DIGITS` significant digits; JSON has no NaN."""
    return [_short(float(value)) if np.isfinite(value) else None for value in values]


def _short(value: float) -> float:
    """Whole numbers without a point, which is two letters less.

    >>> _short(0.123456), _short(25000.0)
    (0.1235, 25000)
    """
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
