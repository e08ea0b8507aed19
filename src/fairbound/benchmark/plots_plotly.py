"""Figures as plotly draws them on a page: the panels of `plots_matplotlib`, with numbers under the pointer.

Colors of text and grids are names of the page's own, such as var(--ink), so that light, dark and print give theirs.
"""

from __future__ import annotations

from html import escape
from itertools import chain
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from fairbound._utils.optional import need
from fairbound._utils.pages import styled
from fairbound.benchmark.plots import BLACK, FigureSpec, Panel

MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star", "x")
PIXELS_PER_INCH = 96
PANEL_GAP_PX, BLOCK_GAP_PX = 12, 60  # between rows of panels; between blocks of them, beside those
LEGEND_PX, RIM_LABEL_PX = 40, 24
LETTERS = 115  # of titles side by side
MIN_PANEL_PX = {"line": 165, "step": 165, "radar": 210, "point": 300}  # width in which a panel can still be read
MARGIN_PX = 100
END = "<extra></extra>"  # no second box beside what is under the pointer
NAME = "<b>%{fullData.name}</b><br>"
HOVER = {  # mark -> further columns, and what stands under the pointer
    "line": (["low", "high"], "%{y:.4g} at %{x:,}<br>quartiles %{customdata[0]:.4g} to %{customdata[1]:.4g}"),
    "step": (["share", "end"], "%{customdata[0]:.2%} between %{x:.3g} and %{customdata[1]:.3g}"),
    "radar": ([], "%{theta}<br>%{r:.0%} of it"),
    "point": (
        ["x_std", "y_std"],
        "%{xaxis.title.text} %{x:.4g} ± %{customdata[0]:.2g}<br>%{yaxis.title.text} %{y:.4g} ± %{customdata[1]:.2g}",
    ),
}
RIM = {
    "bgcolor": "rgba(0,0,0,0)",
    "radialaxis": {
        "range": [0, 1.02], "tickvals": [0.25, 0.5, 0.75, 1.0], "ticks": "", "showticklabels": False,
        "showline": False, "gridcolor": "var(--line)",
    },
    "angularaxis": {
        "direction": "clockwise", "rotation": 90, "gridcolor": "var(--line)", "ticks": "", "showline": False,
    },
}  # fmt: skip
BOUND = {"color": "var(--ink)", "width": 1, "dash": "dash"}


def draw(spec: FigureSpec) -> Any:
    """The plotly figure."""
    panels, columns = list(spec.panels()), spec.shape[1]
    # Rows of the grid: those of a block of panels, and an empty one for numbers and titles before the next
    block = [spec.panel_height * PIXELS_PER_INCH] * len(spec.facets) + [BLOCK_GAP_PX]
    heights = (block * (spec.shape[0] // len(spec.facets)))[:-1]
    inner = sum(heights) + PANEL_GAP_PX * (len(heights) - 1)
    kinds: list[list[Any]] = [[None] * columns for _ in heights]
    titles = {}
    for panel in panels:
        place = _grid_row(spec, panel) - 1, panel.column
        kinds[place[0]][place[1]] = {"type": "polar" if spec.mark == "radar" else "xy"}
        titles[place] = f"<b>{_wrapped(panel.name, LETTERS // columns)}</b>" if panel.is_first else ""
    figure = need("plotly.subplots", "report", "The HTML page").make_subplots(
        len(heights), columns, specs=kinds, row_heights=heights, vertical_spacing=PANEL_GAP_PX / inner,
        horizontal_spacing=(0.4 if spec.mark == "radar" else 0.15) / columns,
        subplot_titles=[titles[place] for place in sorted(titles)],
    )  # fmt: skip
    traces, places = list[Any](), list[tuple[int, int]]()
    for panel in panels:
        found = [_traces(spec, data, str(series)) for series, data in panel.data.groupby("series", sort=False)]
        traces += [*chain.from_iterable(found), *_bounds(panel)]
        places += [(_grid_row(spec, panel), panel.column + 1)] * (len(traces) - len(places))
    for name in {trace.name for trace in traces}:  # the legend has each once
        next(trace for trace in traces if trace.name == name and trace.mode != "none").showlegend = True
    figure.add_traces(traces, *zip(*places, strict=True))
    for panel in panels:
        axes = figure.get_subplot(_grid_row(spec, panel), panel.column + 1)
        axes.update(RIM) if spec.mark == "radar" else _set_axes(axes, spec, panel)
    below = {"orientation": "h", "x": 0.5, "xanchor": "center", "y": 0, "yref": "container", "yanchor": "bottom"}
    shift = RIM_LABEL_PX if spec.mark == "radar" else 0
    figure.update_annotations(font={"size": 13}, yshift=shift)
    figure = styled(figure, round(inner) + 3 * LEGEND_PX + shift)
    margin = {"t": LEGEND_PX + shift, "b": 2 * LEGEND_PX}
    return figure.update_layout(showlegend=True, legend={} if spec.mark == "point" else below, margin=margin)


def _grid_row(spec: FigureSpec, panel: Panel) -> int:
    """As plotly counts, from 1."""
    return panel.row + panel.row // len(spec.facets) + 1


def min_width(spec: FigureSpec) -> int:
    """Pixels below which panels cannot be read."""
    return MARGIN_PX + spec.shape[1] * MIN_PANEL_PX[spec.mark]


def _traces(spec: FigureSpec, data: pd.DataFrame, series: str) -> list[Any]:
    """The series, and its band below it."""
    graph = need("plotly.graph_objects", "report", "The HTML page")
    color = "var(--ink)" if spec.colors[series] == BLACK else spec.colors[series]
    further, words = HOVER[spec.mark]
    common = {"name": _wrapped(series, 28), "legendgroup": series, "showlegend": False}
    hover = {"hovertemplate": NAME + words + END, "customdata": _numbers(data[further]) if further else None}
    if spec.mark == "radar":
        spokes = [escape(spoke, quote=False).replace("\n", "<br>") for spoke in data["x"]]
        return [
            graph.Scatterpolar(
                r=_numbers([*data["y"], data["y"].iloc[0]]), theta=[*spokes, spokes[0]], mode="lines+markers",
                fill="toself", fillcolor=_faint(spec.colors[series], 0.08), line={"color": color, "width": 2},
                marker={"size": 5}, **common, **hover,
            )
        ]  # fmt: skip
    x, y = _numbers(data["x"]), _numbers(data["y"])
    if spec.mark == "point":
        error = {"type": "data", "thickness": 1, "width": 3, "color": color}
        errors = {f"error_{at}": error | {"array": _numbers(data[f"{at}_std"])} for at in "xy"}
        marker = {"color": color, "symbol": MARKERS[list(spec.colors).index(series) % len(MARKERS)], "size": 10}
        return [graph.Scatter(x=x, y=y, mode="markers", marker=marker, **errors, **common, **hover)]
    line = {"color": color, "width": 1.8, "shape": "hv" if spec.mark == "step" else "linear"}
    found = [graph.Scatter(x=x, y=y, mode="lines", line=line, **common, **hover)]
    band = data[data["low"].notna() & data["high"].notna()] if spec.mark == "line" else data[:0]
    if len(band):
        around = _numbers([*band["x"], *band["x"][::-1]]), _numbers([*band["low"], *band["high"][::-1]])
        found.insert(0, graph.Scatter(
            x=around[0], y=around[1], mode="none", fill="toself", hoverinfo="skip",
            fillcolor=_faint(spec.colors[series], 0.25), **common,
        ))  # fmt: skip
    elif spec.mark == "line":
        found[0].hovertemplate = NAME + words.partition("<br>")[0] + END
    return found


def _bounds(panel: Panel) -> list[Any]:
    graph = need("plotly.graph_objects", "report", "The HTML page")
    line = {"mode": "lines", "line": BOUND, "name": "bound", "legendgroup": "bound", "hoverinfo": "skip"}
    ends = {"x": list(panel.x_range), "showlegend": False}
    return [graph.Scatter(y=[bound, bound], **ends, **line) for bound in panel.facet.bounds]


def _set_axes(axes: Any, spec: FigureSpec, panel: Panel) -> None:
    is_left, ticks = panel.column == 0, panel.facet.ticks
    has_label = is_left or spec.mark == "point"  # what stands under the pointer reads it
    axes.xaxis.update(
        range=list(panel.x_range), nticks=5, tickformat="~s" if panel.x_range[1] >= 1000 else "",
        showticklabels=panel.is_last,
        title={"text": spec.x_label if panel.is_last else "", "standoff": 4, "font": {"size": 12}},
    )  # fmt: skip
    axes.yaxis.update(
        range=list(panel.facet.y_range), showticklabels=is_left,
        title={"text": _wrapped(panel.facet.label, 18) if has_label else "", "standoff": 6, "font": {"size": 12}},
        **({"nticks": 5} if ticks is None else {"tickvals": list(ticks), "ticktext": list(ticks.values())}),
    )  # fmt: skip


def _wrapped(name: str, width: int) -> str:
    """For plotly, which reads tags."""
    return "<br>".join(escape(line, quote=False) for line in wrap(name, width, break_on_hyphens=False) or [""])


def _faint(color: str, share: float) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


def _numbers(values: Any) -> Any:
    """Single precision: more than a figure shows, and the page stays small."""
    return np.asarray(values, dtype=np.float32)
