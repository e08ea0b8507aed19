"""Figures as PDF and PNG, on matplotlib's ordinary axes. pyplot, with its global figures, is not used."""

from __future__ import annotations

import math
from pathlib import Path
from textwrap import fill
from typing import Any

import pandas as pd

from fairbound._utils.optional import need
from fairbound.benchmark.plots import FigureSpec, Panel

MARKERS = "osD^vP*X"  # with 7 colors 56 pairs differ, neighbors in both
STYLE = {"font.size": 8, "pdf.fonttype": 42, "text.parse_math": False, "axes.spines.top": False,
         "axes.spines.right": False, "axes.grid": True, "grid.color": "0.9", "axes.axisbelow": True}  # fmt: skip
LETTERS_PER_INCH = 11  # of a title
COMPRESSION = 4  # of PNG, of 9: beyond it files get little smaller


def save(spec: FigureSpec, folder: Path | str, name: str, *, width: float = 11.0, dpi: int = 110) -> tuple[Path, Path]:
    """Write `name`.pdf and `name`.png, as wide as this many inches; their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pdf, png = folder / f"{name}.pdf", folder / f"{name}.png"
    with _style():
        figure = _draw(spec, width)
        figure.savefig(pdf, metadata={"CreationDate": None})  # the same results make the same file
        figure.set_layout_engine("none")  # the places are known now
        figure.savefig(png, dpi=dpi, pil_kwargs={"compress_level": COMPRESSION})
    return pdf, png


def draw(spec: FigureSpec, width: float = 11.0) -> Any:
    """The matplotlib figure."""
    with _style():
        return _draw(spec, width)


def _style() -> Any:
    return need("matplotlib", "report", "A figure as PDF or PNG").rc_context(STYLE)


def _draw(spec: FigureSpec, width: float) -> Any:
    rows, columns = spec.shape
    size = (width, rows * spec.panel_height + 0.6)
    figure = need("matplotlib.figure", "report", "A figure as PDF or PNG").Figure(size, layout="constrained")
    polar = {"projection": "polar"} if spec.mark == "radar" else {}
    grid = figure.subplots(rows, columns, squeeze=False, subplot_kw=polar)
    unused = set(grid.flat)
    for panel in spec.panels():
        axes = grid[panel.row, panel.column]
        unused.discard(axes)
        for series, data in panel.data.groupby("series", sort=False):
            _draw_series(axes, spec, data, str(series))
        if panel.is_first:
            axes.set_title(fill(panel.name, int(LETTERS_PER_INCH * width / columns)), fontsize=9)
        _set_rim(axes, panel) if spec.mark == "radar" else _set_axes(axes, spec, panel)
    for axes in unused:
        axes.remove()
    entries: dict[str, Any] = {}  # each once
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    place = {"loc": "outside right center"} if spec.mark == "point" else {"loc": "outside lower center", "ncols": 6}
    figure.legend(entries.values(), [fill(label, 26) for label in entries], frameon=False, fontsize=9, **place)
    return figure


def _draw_series(axes: Any, spec: FigureSpec, data: pd.DataFrame, series: str) -> None:
    x, y = data["x"].to_numpy(), data["y"].to_numpy()
    style: dict[str, Any] = {"color": spec.colors[series], "label": series}
    if spec.mark == "point":
        errors = {"xerr": data["x_std"], "yerr": data["y_std"], "elinewidth": 1}
        marker = MARKERS[list(spec.colors).index(series) % len(MARKERS)]
        axes.errorbar(x, y, **errors, fmt=marker, markersize=7, **style)
    elif spec.mark == "radar":
        around = [*range(len(x)), 0]
        angles = [math.tau * i / len(x) for i in around]
        axes.plot(angles, y[around], marker="o", markersize=3, linewidth=1.4, clip_on=False, **style)
        axes.fill(angles, y[around], color=spec.colors[series], alpha=0.08)
        axes.set_xticks(angles[:-1], x)
    else:
        axes.plot(x, y, linewidth=1.2, drawstyle="steps-post" if spec.mark == "step" else "default", **style)
        if spec.mark == "line" and data["low"].notna().any():
            axes.fill_between(x, data["low"], data["high"], color=spec.colors[series], alpha=0.25, linewidth=0)


def _set_axes(axes: Any, spec: FigureSpec, panel: Panel) -> None:
    for bound in panel.facet.bounds:
        axes.axhline(bound, color="black", linestyle="--", linewidth=1, label="bound")
    axes.set(xlim=panel.x_range, ylim=panel.facet.y_range)
    axes.locator_params(axis="x", nbins=5)
    if panel.x_range[1] >= 1000:
        axes.xaxis.set_major_formatter(need("matplotlib.ticker", "report", "A figure").EngFormatter(sep=""))
    if spec.mark == "line":
        axes.locator_params(axis="y", nbins=5)
    if panel.facet.ticks is not None:
        axes.set_yticks(list(panel.facet.ticks), list(panel.facet.ticks.values()))
    axes.tick_params(labelbottom=panel.is_last, labelleft=panel.column == 0)
    axes.set_xlabel(spec.x_label if panel.is_last else "")
    axes.set_ylabel(fill(panel.facet.label, 18) if panel.column == 0 else "")


def _set_rim(axes: Any, panel: Panel) -> None:
    """Axes clockwise from the top; the numbers at their ends are those of the rim."""
    axes.set(ylim=panel.facet.y_range, yticks=(0.25, 0.5, 0.75, 1.0), yticklabels=[])
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.spines["polar"].set_visible(False)
