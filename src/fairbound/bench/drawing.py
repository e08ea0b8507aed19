"""Sheets as PDF and PNG, by matplotlib. pyplot, with its global figures and its choice of a window, is not used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fairbound.bench.sheets import Line, Panel, Point, Sheet, lines_of
from fairbound.extras import need

FORMATS = ("pdf", "png")
MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v", "cross": "P", "star": "*",
    "x": "X",
}  # fmt: skip
CHARACTER = 0.085  # inches, about, of a letter of a title
STYLE = {
    "font.size": 8, "axes.titlesize": 9, "axes.linewidth": 0.6, "pdf.fonttype": 42, "axes.spines.top": False,
    "axes.spines.right": False, "text.parse_math": False,
}  # fmt: skip


def save(sheet: Sheet, folder: Path | str, name: str, *, width: float = 11.0, dpi: int = 150) -> tuple[Path, Path]:
    """Write `name`.pdf and `name`.png, as wide as this many inches; their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pdf, png = (folder / f"{name}.{ending}" for ending in FORMATS)
    with _style():
        figure = drawn(sheet, width)
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")  # the places are found now; each saving would find them again
        figure.savefig(pdf, metadata={"CreationDate": None})  # the same results make the same file
        figure.savefig(png, dpi=dpi)
    return pdf, png


def drawn(sheet: Sheet, width: float = 11.0) -> Any:
    """The matplotlib figure."""
    with _style():
        return _drawn(sheet, width)


def _style() -> Any:
    return need("matplotlib", "report", "Drawing a figure").rc_context(STYLE)


def _drawn(sheet: Sheet, width: float) -> Any:
    figures = need("matplotlib.figure", "report", "Drawing a figure")
    titled = sum(any(panel.title for panel in row) for row in sheet.rows)
    height = sheet.panel_height * len(sheet.rows) + 0.45 * titled + 0.6
    figure = figures.Figure(figsize=(width, height), layout="constrained")
    across = int(width / sheet.columns / CHARACTER)
    for i, row in enumerate(sheet.rows):
        for j, panel in enumerate(row):
            polar = {"projection": "polar"} if panel.spokes else {}
            axes = figure.add_subplot(len(sheet.rows), sheet.columns, i * sheet.columns + j + 1, **polar)
            axes.set_title("\n".join(lines_of(panel.title, across)))
            _draw_spider(axes, panel) if panel.spokes else _draw(axes, panel, sheet.panel_height)
    _add_legend(figure, beside=any(panel.points for panel in sheet.panels()))
    return figure


def _draw(axes: Any, panel: Panel, height: float) -> None:
    for line in panel.lines:
        _draw_line(axes, line)
    for point in panel.points:
        _draw_point(axes, point)
    for limit in panel.limits:
        axes.axhline(limit, color="black", linewidth=0.8, linestyle=(0, (4, 3)), label="bound")
    axes.set(xlim=panel.x_range, ylim=panel.y_range, xlabel=panel.x_label)
    axes.set_ylabel("\n".join(lines_of(panel.y_label, int(height / CHARACTER))))
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.locator_params(axis="x", nbins=3 if panel.lines else 6)
    axes.locator_params(axis="y", nbins=4 if panel.lines else 6)
    if panel.y_ticks:
        axes.set_yticks([at for at, _ in panel.y_ticks], [words for _, words in panel.y_ticks])
    if panel.x_range[1] >= 1000:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
    axes.tick_params(labelbottom=bool(panel.x_label), labelleft=bool(panel.y_label), length=2)


def _draw_line(axes: Any, line: Line) -> None:
    style = {"color": line.color, "linewidth": 1.2, "label": line.label}
    axes.plot(line.x, line.y, drawstyle="steps-post" if line.steps else "default", **style)
    if line.band is not None:
        axes.fill_between(line.x, *line.band, color=line.color, alpha=0.25, linewidth=0)


def _draw_point(axes: Any, point: Point) -> None:
    axes.errorbar(
        point.x, point.y, xerr=point.x_error, yerr=point.y_error, color=point.color, marker=MARKERS[point.marker],
        markersize=7, linestyle="none", elinewidth=1, capsize=2, label=point.label,
    )  # fmt: skip


def _draw_spider(axes: Any, panel: Panel) -> None:
    angles = np.linspace(0, 2 * np.pi, len(panel.spokes), endpoint=False)
    for line in panel.lines:
        style = {"color": line.color, "linewidth": 1.4, "label": line.label}
        axes.plot(np.append(angles, angles[0]), np.append(line.y, line.y[0]), marker="o", markersize=3, **style)
        axes.fill(angles, line.y, color=line.color, alpha=0.08)
    low, high = panel.y_range
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_ylim(low, 1.02 * high)
    axes.set_xticks(angles, panel.spokes)
    axes.set_yticks(np.linspace(low, high, 5)[1:], [""] * 4)
    axes.grid(color="0.85", linewidth=0.6)
    axes.spines["polar"].set_visible(False)
    axes.tick_params(axis="x", pad=3)
    for angle, words in zip(angles, axes.get_xticklabels(), strict=True):  # away from the spider
        aside = np.sin(angle)
        words.set_horizontalalignment("center" if abs(aside) < 0.1 else "left" if aside > 0 else "right")


def _add_legend(figure: Any, beside: bool) -> None:
    """Each label once, outside the panels."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle[0] if beside else handle)  # of a point the marker without its whiskers
    place = {"loc": "outside right center"} if beside else {"loc": "outside lower center", "ncols": min(len(found), 6)}
    labels = ["\n".join(lines_of(label, 26)) for label in found]
    figure.legend(found.values(), labels, frameon=False, fontsize=9, **place)
