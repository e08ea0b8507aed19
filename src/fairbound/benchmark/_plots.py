"""The figures of a study, from its stored results alone: functions in `PLOTS` that return a
matplotlib figure.

curves       loss and every bounded gap along the steps (the paper's Figures 1 and 2)
seconds      the same over the seconds that the steps take
validation   the same on the validation split, of a study that chooses settings (Figure 5)
scores       distributions of the scores by group at the end (Figure 3)
radar        the fairness metrics of each method at the end (Figure 4)
trade-off    loss against violation at the end

A panel is a method, and all have the same axes. To add a figure, write a function of `Results` that
returns one, with its caption as its label (`reports/_figures.py`), and enter it in `PLOTS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fairbound.benchmark._front import on_front
from fairbound.benchmark._results import LOSS, ReportItem, Results
from fairbound.reports._figures import (
    ALERT,
    COLORS,
    DOT,
    FAINT,
    INK,
    LINE,
    PAPER,
    SOFT,
    error_bars,
    label_points,
    legend,
    look,
    panels,
    style,
    thinned,
    titled,
)

_Range = tuple[float, float]
PART_COLORS = {"train": DOT, "test": ALERT, "validation": COLORS[2], "dual": COLORS[3]}
BOTH = ("train", "test")
_WIDTH = 176  # of a method's panel: six side by side, two on a phone
_MAX_RECORDS = 24  # of a curve that are drawn: its panel is about 130 pixels wide
SHARE_TICKS = (0.0, 0.05, 0.2, 0.5, 1.0)
FAR = 3.0  # widths of what most methods span
# of a loss or a gap of losses: where most lie closer together than this, it counts as their width
TYPICAL_WIDTH = 0.1
# letters and points: beyond, points have numbers, and names stand beside
MAX_LABEL, MAX_LABELS = 22, 16


# Figures ------------------------------------------------------------------------------------------


@style()
def _curves(results: Results, parts: Sequence[str] = BOTH) -> Any:
    """A panel for each method, axes for the loss and for each gap.

    A number of steps says nothing about another method's, so each panel has its own axis of steps.
    """
    data, axis = _along(results, parts)
    quantities, rows = list(dict.fromkeys(data["quantity"])), list(dict.fromkeys(data["row"]))
    figure, grid = _method_panels(rows, len(quantities), 100)
    for (row, quantity), of_axes in data.groupby(["row", "quantity"], sort=False):
        axes = grid[row][quantities.index(quantity)]
        for part, curve in of_axes.groupby("part", sort=False):
            _draw_curve(
                axes, curve, f"{row}, {part}: {quantity}", label=part, color=PART_COLORS[part]
            )
        _set_curve_axes(axes, results, quantity, axis[quantity], of_axes["step"].max())
        grid[row][-1].set_xlabel("steps")
    shown = " and ".join(dict.fromkeys(data["part"]))
    caption = (
        f"Loss and bounded gaps over steps on {shown}: mean over runs, band between quartiles,"
        " bounds dashed"
    )
    return _finished(figure, caption + _outside(axis))


@style()
def seconds(results: Results) -> Any:
    """A panel for the loss and for each gap: all methods on train, over the seconds of a run, where
    they are known."""
    data, axis = _along(results, ("train",), results.seconds)
    quantities = list(dict.fromkeys(data["quantity"]))
    figure, parts = panels(len(quantities) + 1, 360, 250)
    grid = {quantity: panel.subplots() for quantity, panel in zip(quantities, parts, strict=False)}
    for place, (row, of_row) in enumerate(data.groupby("row", sort=False)):
        for quantity, curve in of_row.groupby("quantity", sort=False):
            _draw_curve(
                grid[quantity], curve.assign(runs=1), f"{row}: {quantity}", label=row, **look(place)
            )
    for quantity, axes in grid.items():
        _set_curve_axes(axes, results, quantity, axis[quantity], data["x"].max())
        axes.set_xlabel("seconds")
    caption = (
        "Loss and bounded gaps over the seconds of a run on train: mean over runs, bounds dashed"
    )
    return _finished(figure, caption + _outside(axis))


def _along(
    results: Results, parts: Sequence[str], seconds: Mapping[str, float] | None = None
) -> tuple[pd.DataFrame, dict[str, SharedAxis]]:
    """Curves over x, which is steps or seconds, and by quantity the axis that all methods share."""
    data = results.curves([part for part in parts if part in results.study.measured])
    data = data.assign(x=data["step"] * (1.0 if seconds is None else data["row"].map(seconds)))
    data = data[np.isfinite(data["x"])]
    limits, numbers, is_loss = (
        results.gaps.limits,
        ("mean", "low", "high"),
        data["quantity"] == LOSS,
    )
    of_gaps = shared_axis(
        data[~is_loss], numbers, [bound for bounds in limits.values() for bound in bounds]
    )
    return data, {LOSS: shared_axis(data[is_loss], numbers)} | dict.fromkeys(limits, of_gaps)


def _set_curve_axes(
    axes: Any, results: Results, quantity: str, axis: SharedAxis, end: float
) -> None:
    for bound in results.gaps.limits.get(quantity, ()):
        axes.axhline(bound, color=INK, linestyle="--", linewidth=1, label="bound")
    axes.set(xlim=(0, end), ylim=axis.range)
    label = f"|{quantity}|" if results.gaps.absolute and quantity != LOSS else quantity
    axes.set_title(fill(label, 24), fontsize=11, weight="normal")
    axes.locator_params(nbins=4)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}" if x < 1000 else f"{x / 1000:g}k")


def _draw_curve(axes: Any, curve: pd.DataFrame, words: str, **settings: Any) -> None:
    curve = curve.replace([math.inf, -math.inf], math.nan).iloc[thinned(len(curve), _MAX_RECORDS)]
    if (curve["runs"] > 1).all():  # one run has no band
        axes.fill_between(
            curve["x"],
            curve["low"],
            curve["high"],
            color=settings["color"],
            alpha=0.25,
            linewidth=0,
        )
    (line,) = axes.plot(curve["x"], curve["mean"], **settings)
    titled(line, f"{words} {curve['mean'].iloc[-1]:.4g} at the end")


@style()
def _scores(results: Results) -> Any:
    """A panel for each method, axes for each part: the outline of every group's histogram.

    The axis is that of square roots: a method that is sure of many examples has one bin above all
    others.
    """
    data = results.histograms(BOTH)
    top = 1.05 * math.sqrt(data["share"].max())
    ticks = {math.sqrt(share): f"{share:.0%}" for share in SHARE_TICKS if math.sqrt(share) <= top}
    figure, grid = _method_panels(list(dict.fromkeys(data["row"])), len(BOTH), 130)
    for (row, part, group), bins in data.groupby(["row", "part", "group"], sort=False):
        axes = grid[row][BOTH.index(part)]
        color = COLORS[results.groups.index(group) % len(COLORS)]
        edges = [*bins["low"], bins["high"].iloc[-1]]
        titled(
            axes.stairs(np.sqrt(bins["share"]), edges, color=color, label=group),
            f"{row}, {part}: {group}",
        )
        axes.set(xlim=(0, 1), ylim=(0, top))
        axes.set_yticks(list(ticks), list(ticks.values()))
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_title(f"share, {part}", fontsize=11, weight="normal")
        grid[row][-1].set_xlabel("score")
    return _finished(
        figure,
        "Distribution of scores by group: share of the group in each bin on an axis of roots, mean"
        " over runs",
    )


@style()
def radar(results: Results) -> Any:
    """Every metric as a share of the largest one among all methods, which its axis names.

    By the definitions of the paper's results, and as printed where these are undefined: with three
    groups or more.
    """
    names = {column: name for name, column in results.metrics.items()} | {
        "accuracy_difference": "DifAcc"
    }
    final = results.final[
        results.final["part"].isin(BOTH) & results.final["row"].isin(results.stored)
    ]
    means = final.groupby(["row", "part"], sort=False)[list(names)].mean().rename(columns=names)
    largest = means.max().fillna(0.0)
    angles = [math.tau * i / len(names) for i in range(len(names))]
    figure, grid = _method_panels(list(results.stored), 1, 130, subplot_kw={"projection": "polar"})
    for (row, part), line in means.iterrows():
        (axes,) = grid[row]
        shares = (line / largest.where(largest > 0, 1.0)).tolist()
        settings = {"color": PART_COLORS[part], "label": part, "clip_on": False}
        words = ", ".join(f"{name} {value:.3g}" for name, value in line.items())
        titled(
            axes.plot([*angles, 0], [*shares, shares[0]], **settings)[0], f"{row}, {part}: {words}"
        )
        axes.fill(angles, shares, color=PART_COLORS[part], alpha=0.08)
        axes.set(ylim=(0, 1), yticks=(0.5, 1.0), yticklabels=[])
        axes.set_xticks(
            angles, [f"{name}\n{top:.2g}" for name, top in largest.items()], fontsize=10
        )
        axes.set_theta_zero_location("N")
        axes.set_theta_direction(-1)
        axes.tick_params(axis="x", pad=4)
        axes.spines["polar"].set_color(LINE)
    return _finished(
        figure,
        "Fairness metrics at the end, mean over runs: smaller is better, the rim is the number at"
        " each axis",
    )


def trade_off(results: Results) -> Any:
    """A panel for each part: what every method loses, against how far it is from the bound."""
    parts = (
        ["validation"]
        if results.tuning
        else [part for part in BOTH if part in results.study.measured]
    )
    ends = {}
    for part in parts:
        summary = results.summary(part).reindex(list(results.stored))
        front = on_front(
            summary[[(LOSS, "mean"), ("violation", "mean")]].to_numpy(dtype=float).tolist()
        )
        numbers = summary[
            [(name, field) for name in (LOSS, "violation") for field in ("mean", "std")]
        ]
        rows = zip(summary.index, numbers.to_numpy(dtype=float).tolist(), front, strict=True)
        ends[part] = [
            End(str(row), *values)._replace(is_strong=strong) for row, values, strong in rows
        ]
    caption = (
        "Loss against violation, mean over runs with one standard deviation to each side; filled:"
        " on the front"
    )
    return draw_ends(ends, caption, "violation")


def _along_steps(results: Results) -> bool:
    several = results.study.records > 1
    return several and not results.tuning and set(BOTH) <= set(results.study.measured)


PLOTS: dict[str, ReportItem] = {
    "curves": ReportItem("Along the steps, training and test examples", _along_steps, _curves),
    "seconds": ReportItem(
        "Along the seconds, training examples",
        lambda r: _along_steps(r) and any(map(math.isfinite, r.seconds.values())),
        seconds,
    ),
    "validation": ReportItem(
        "Along the steps on validation examples",
        lambda r: r.tuning and r.study.records > 1,
        lambda r: _curves(r, ("validation",)),
    ),
    "scores": ReportItem("Scores by group", lambda r: not r.tuning, _scores),
    "radar": ReportItem("Fairness metrics", lambda r: not r.tuning, radar),
    "trade-off": ReportItem("Loss against violation", lambda r: True, trade_off),
}


def _method_panels(
    names: Sequence[str], rows: int, height: float, **settings: Any
) -> tuple[Any, dict[str, list[Any]]]:
    """A panel for each method, with axes below each other, and one more for the legend; the axes by
    method."""
    figure, parts = panels(len(names) + 1, _WIDTH, rows * height + 62, columns=6)
    grid = {}
    titles = [fill(name, _WIDTH // 8) for name in names]
    lines = max(title.count("\n") for title in titles)  # axes begin at one height
    for name, title, panel in zip(names, titles, parts, strict=False):
        grid[name] = list(panel.subplots(rows, 1, squeeze=False, sharex=True, **settings)[:, 0])
        title += "\n" * (lines - title.count("\n"))
        panel.suptitle(title, x=0.02, ha="left", fontsize=12, weight="bold")
    return figure, grid


def _finished(figure: Any, caption: str) -> Any:
    legend(figure.subfigs[-1], figure.axes)
    figure.set_label(caption)
    return figure


# Loss against violation ---------------------------------------------------------------------------


class End(NamedTuple):
    """The ends of a method's runs: means and standard deviations."""

    name: str
    loss: float
    loss_std: float
    violation: float
    violation_std: float
    is_strong: bool = False  # drawn filled


@style()
def draw_ends(
    parts: Mapping[str, Sequence[End]],
    caption: str,
    x_label: str,
    widths: _Range = (TYPICAL_WIDTH, TYPICAL_WIDTH),
) -> Any:
    """A panel for each part, with the same axes; a method beyond them stands at their edge.

    Every point has its name, or where names are long or many a number, with the names in a panel of
    their own.
    """
    ends = [
        end for part in parts.values() for end in part if math.isfinite(end.loss + end.violation)
    ]
    along, up = (
        _spread_axis(ends, name, width)
        for name, width in zip(("violation", LOSS), widths, strict=True)
    )
    names = list(dict.fromkeys(end.name for part in parts.values() for end in part))
    is_numbered = len(names) > MAX_LABELS or max(map(len, names), default=0) > MAX_LABEL
    count = len(parts) + is_numbered
    figure, places = panels(count, 440 if count < 3 else 360, 380, columns=3)
    for (part, of_part), panel in zip(parts.items(), places, strict=False):
        axes = panel.subplots()
        axes.set(xlim=along.range, ylim=up.range, xlabel=x_label, ylabel=LOSS, title=part)
        axes.locator_params(nbins=6)
        axes.axvline(0, color=INK, linestyle="--", linewidth=1)
        # are labeled first
        drawn = sorted((end for end in of_part if end in ends), key=lambda end: not end.is_strong)
        points = [_draw_end(axes, end) for end in drawn]
        labels = [str(names.index(end.name) + 1) if is_numbered else end.name for end in drawn]
        label_points(axes, points, labels, [DOT if end.is_strong else SOFT for end in drawn])
    if is_numbered:
        text = "\n".join(f"{i}  {name}" for i, name in enumerate(names, start=1))
        places[-1].text(0.02, 0.95, text, va="top", linespacing=1.35)
    figure.set_label(caption + _outside({"violation": along, LOSS: up}))
    return figure


def _spread_axis(ends: Sequence[End], name: str, width: float) -> SharedAxis:
    """Axis of means with their standard deviations."""
    lines = [
        (end.name, getattr(end, name) + side * getattr(end, f"{name}_std"))
        for end in ends
        for side in (-1, 1)
    ]
    also = (0.0,) if name == "violation" else ()
    return shared_axis(pd.DataFrame(lines, columns=["row", name]), [name], also, width)


def _draw_end(axes: Any, end: End) -> tuple[float, float]:
    """Draw an end; returns where the point is drawn."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    x = min(max(end.violation, left + 0.015 * (right - left)), right - 0.015 * (right - left))
    y = min(max(end.loss, bottom + 0.02 * (top - bottom)), top - 0.02 * (top - bottom))
    is_outside = not (left <= end.violation <= right and bottom <= end.loss <= top)
    color = DOT if end.is_strong else SOFT
    if not is_outside:
        x_ends, y_ends = (
            (x - end.violation_std, x + end.violation_std),
            (y - end.loss_std, y + end.loss_std),
        )
        error_bars(axes, (x, y), x_ends, y_ends, color if end.is_strong else FAINT)
    words = (
        f"{end.name}: loss {end.loss:.4g} ± {end.loss_std:.2g}, violation {end.violation:.4g} ±"
        f" {end.violation_std:.2g}"
    )
    mark = {
        "marker": "^" if is_outside else "o",
        "markersize": 8,
        "markerfacecolor": color if end.is_strong else PAPER,
        "markeredgecolor": color,
        "markeredgewidth": 1.5,
    }
    titled(
        axes.plot(x, y, **mark, zorder=3, clip_on=False)[0],
        words + (", outside of the axes" if is_outside else ""),
    )
    return x, y


# An axis for many methods -------------------------------------------------------------------------


class SharedAxis(NamedTuple):
    """What an axis shows."""

    range: _Range
    beyond: dict[str, _Range]  # by method, the extent of those outside it
    not_finite: list[str]  # methods with a value that no axis can show


def shared_axis(
    data: pd.DataFrame,
    columns: Sequence[str],
    also: Sequence[float] = (),
    width: float = TYPICAL_WIDTH,
) -> SharedAxis:
    """Axis for the values of all methods ("row") in some columns, and for the numbers in `also`.

    Panels share an axis so that they can be compared. A method whose loss reached 10^6 would make
    flat lines of all the others: it is cut off instead, and the caption says so. Most methods span
    the range between the quartiles of their least and of their greatest values; one that goes
    beyond it by more than `FAR` widths does not decide.

    >>> data = pd.DataFrame({"row": list("AABBCC"), "mean": [0.4, 0.7, 0.5, 0.6, 0.4, 9e5]})
    >>> axis = shared_axis(data, ["mean"])
    >>> [round(end, 3) for end in axis.range], axis.beyond
    ([0.385, 0.715], {'C': (0.4, 900000.0)})
    """
    values = data.set_index("row")[list(columns)].stack(future_stack=True).astype(float)
    rows = values.index.get_level_values("row")
    not_finite = list(dict.fromkeys(rows[~np.isfinite(values)]))
    finite = values[np.isfinite(values)].groupby("row", sort=False)
    low, high = finite.min(), finite.max()
    if low.empty:
        return SharedAxis(_padded(also), {}, not_finite)
    # Rounded inwards: of two methods the one that spans less counts
    ends = [low.quantile(0.25, "higher"), high.quantile(0.75, "lower"), *also]
    margin = FAR * max(max(ends) - min(ends), width)
    outside = (low < min(ends) - margin) | (high > max(ends) + margin)
    outside &= not outside.all()
    beyond = {str(row): (float(low[row]), float(high[row])) for row in low.index[outside]}
    return SharedAxis(_padded([*low[~outside], *high[~outside], *also]), beyond, not_finite)


def _padded(numbers: Sequence[float], margin: float = 0.05) -> _Range:
    """Range from the least to the greatest, with a margin."""
    if not len(numbers):
        return 0.0, 1.0
    low, high = float(min(numbers)), float(max(numbers))
    extra = margin * (high - low) or max(abs(high), 1.0) * margin  # a single number has no width
    return low - extra, high + extra


def _outside(axes: Mapping[str, SharedAxis]) -> str:
    """A note on what is outside the axes."""
    beyond_axis = [
        f"{name} ({what} from {low:.3g} to {high:.3g})"
        for what, axis in axes.items()
        for name, (low, high) in axis.beyond.items()
    ]
    words = (
        f". Beyond the axis, which the other methods set: {', '.join(beyond_axis)}"
        if beyond_axis
        else ""
    )
    diverged = dict.fromkeys(name for axis in axes.values() for name in axis.not_finite)
    return words + (f". Not finite, and there not drawn: {', '.join(diverged)}" if diverged else "")
