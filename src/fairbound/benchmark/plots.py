"""The figures of a benchmark, from its stored results alone, each a function in `PLOTS` that returns its data.

curves       loss and every bounded gap along the steps, on train and test (the paper's Figures 1 and 2)
seconds      the same over the seconds that the steps take
validation   the same on the validation split (Figure 5)
scores       distributions of the scores by group at the end (Figure 3)
radar        the fairness metrics of each method at the end (Figure 4)
trade-off    loss against violation at the end

`plots_plotly` draws a `FigureSpec` on a page, `plots_matplotlib` as PDF and PNG.

To add a figure, write a function of `Results` that returns a `FigureSpec`, and enter it in `PLOTS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from fairbound.benchmark.results import LOSS, ReportItem, Results, paper_metrics

Range = tuple[float, float]
# Okabe and Ito's palette for all kinds of color vision, without its yellow, which is faint on white.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
BLACK = "#000000"  # on a page the ink of the page
COLORS = (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9", BLACK)
PART_COLORS = {"train": BLUE, "test": ORANGE, "validation": GREEN, "dual": PURPLE}
BOTH = ("train", "test")
MAX_RECORDS = 120  # of a curve that are drawn: a panel is about as many pixels wide
SHARE_TICKS = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)
FAR = 3.0  # widths of what most methods span
TYPICAL_WIDTH = 0.1  # of a loss or a gap of losses: where most lie closer together than this, it counts as their width


class Facet(NamedTuple):
    """The panels of one quantity: they share an axis."""

    label: str
    y_range: Range = (0.0, 1.0)
    bounds: tuple[float, ...] = ()  # dashed lines across
    ticks: Mapping[float, str] | None = None  # None: the drawing library's own choice


class Panel(NamedTuple):
    """One set of axes, and its place in the grid."""

    name: str
    facet: Facet
    row: int
    column: int
    is_first: bool  # of the facets of its name: it has the title
    is_last: bool  # it has the label of x
    x_range: Range
    data: pd.DataFrame


@dataclass(frozen=True, eq=False, kw_only=True)
class FigureSpec:
    """A figure as data: a panel for each name and facet."""

    caption: str
    mark: Literal["line", "step", "radar", "point"]
    data: pd.DataFrame  # panel, facet, series, x, y; line: low, high; step: share, end; point: x_std, y_std
    facets: Mapping[str, Facet]
    colors: Mapping[str, str]  # by series
    x_label: str = ""
    x_ranges: Mapping[str, Range] | None = None  # by panel; None: from 0 to 1
    max_columns: int = 6  # panels side by side; more continue below
    panel_height: float = 1.5  # inches

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the grid; rows of panels are filled evenly."""
        names = self.data["panel"].nunique()
        blocks = -(-names // self.max_columns)
        return blocks * len(self.facets), -(-names // blocks)

    def panels(self) -> Iterator[Panel]:
        """The facets of a panel's name stand below each other."""
        columns, last = self.shape[1], len(self.facets) - 1
        for i, (name, data) in enumerate(self.data.groupby("panel", sort=False)):
            for j, (key, facet) in enumerate(self.facets.items()):
                place = i // columns * len(self.facets) + j, i % columns
                x_range = (self.x_ranges or {}).get(str(name), (0.0, 1.0))
                yield Panel(str(name), facet, *place, j == 0, j == last, x_range, data[data["facet"] == key])


# Figures --------------------------------------------------------------------------------------------------------------


def curves(results: Results, parts: Sequence[str] = BOTH, seconds: Mapping[str, float] | None = None) -> FigureSpec:
    """A column for each method, a row for the loss and for each gap; with `seconds` per step, over time.

    A number of steps says nothing about another method's, so each column has its own axis of steps; seconds share one.
    """
    unit = "steps" if seconds is None else "seconds"
    data = results.curves([part for part in parts if part in results.measured])
    if seconds is not None:
        data = data[data["row"].isin(seconds)]
        if data.empty:
            raise ValueError("there is nothing to draw: seconds per step are given for none of the rows")
    data = data.assign(x=data["step"] * (1.0 if seconds is None else data["row"].map(seconds)))
    ends = data.groupby("row", sort=False)["x"].max()
    limits, numbers, is_loss = results.gaps.limits, ("mean", "low", "high"), data["quantity"] == LOSS
    of_loss = shared_axis(data[is_loss], numbers)
    of_gaps = shared_axis(data[~is_loss], numbers, [bound for bounds in limits.values() for bound in bounds])
    facets = {LOSS: Facet(LOSS, of_loss.range)}
    for name, bounds in limits.items():
        facets[name] = Facet(f"|{name}|" if results.gaps.absolute else name, of_gaps.range, bounds)
    colors = {part: PART_COLORS[part] for part in dict.fromkeys(data["part"])}
    caption = f"Loss and bounded gaps over {unit} on {' and '.join(colors)}: mean over runs, band between quartiles, "
    many = data["runs"] > 1  # one run has no band
    data = data.assign(low=data["low"].where(many), high=data["high"].where(many))
    data = data.groupby(["row", "part", "quantity"], sort=False, group_keys=False)[data.columns].apply(_thinned)
    return FigureSpec(
        caption=f"{caption}bounds dashed{_outside({LOSS: of_loss, 'a gap': of_gaps})}", mark="line",
        facets=facets, colors=colors,
        data=_tidy(data, panel="row", facet="quantity", series="part", y="mean"), x_label=unit,
        x_ranges={str(row): (0.0, float(end if seconds is None else ends.max())) for row, end in ends.items()},
    )  # fmt: skip


def seconds(results: Results) -> FigureSpec:
    """The curves over the time of one run alone."""
    found = curves(results, seconds=results.seconds)
    return replace(found, caption=f"{found.caption}. CPU seconds of a run: its share of steps made for several at once")


def scores(results: Results) -> FigureSpec:
    """A column for each method, a row for each part: the outline of every group's histogram.

    The axis is that of square roots: a method that is sure of many examples has one bin above all others.
    """
    data = results.histograms(BOTH)
    last = data.groupby(["row", "part", "group"], sort=False).tail(1)  # closes the outline
    data = pd.concat([data, last.assign(low=last["high"])])
    data = data.assign(y=np.sqrt(data["share"]), end=data["high"])
    top = 1.05 * float(data["y"].max())
    ticks = {share**0.5: f"{share:.0%}" for share in SHARE_TICKS if share**0.5 <= top}
    return FigureSpec(
        caption="Distribution of scores by group: share of the group in each bin on an axis of roots, mean over runs",
        mark="step", facets={part: Facet(f"share, {part}", (0.0, top), ticks=ticks) for part in BOTH},
        data=_tidy(data, panel="row", facet="part", series="group", x="low"), x_label="score", panel_height=1.8,
        colors=_colors(results.groups),
    )  # fmt: skip


def radar(results: Results) -> FigureSpec:
    """Every metric as a share of the largest one among all methods, which its axis names.

    By the definitions of the paper's results, and as printed where these are undefined: with three groups or more.
    """
    metrics = paper_metrics("reported" if len(results.groups) == 2 else "printed")
    names = {column: name for name, column in metrics.items()} | {"accuracy_difference": "DifAcc"}
    final = results.final[results.final["part"].isin(BOTH) & results.final["row"].isin(results.stored)]
    means = final.groupby(["row", "part"], sort=False)[list(names)].mean().rename(columns=names)
    largest = means.max().fillna(0.0)
    means = means / largest.where(largest > 0, 1.0)
    means.columns = [f"{name}\n{top:.2g}" for name, top in largest.items()]
    data = means.reset_index().melt(["row", "part"], var_name="x", value_name="y").assign(facet="")
    return FigureSpec(
        caption="Fairness metrics at the end, mean over runs: smaller is better, the rim is the number at each axis",
        mark="radar", data=_tidy(data, panel="row", series="part"), facets={"": Facet("")},
        colors={part: PART_COLORS[part] for part in BOTH}, max_columns=4, panel_height=2.6,
    )  # fmt: skip


def trade_off(results: Results) -> FigureSpec:
    """A panel for each part: what every method loses, against how far it is from the bound."""
    rows = list(results.stored)
    parts = ["validation"] if results.tuning else [part for part in BOTH if part in results.measured]
    data = pd.concat({part: results.summary(part)[[LOSS, "violation"]] for part in parts}, names=["part", "row"])
    data = data.set_axis(["y", "y_std", "x", "x_std"], axis=1).reset_index().assign(facet="")
    ends = pd.concat([data.assign(**{at: data[at] + side * data[f"{at}_std"] for at in "xy"}) for side in (-1, 1)])
    along, up = (shared_axis(ends, (at,)) for at in "xy")
    caption = "Loss against violation, mean over runs with one standard deviation to each side"
    return FigureSpec(
        caption=caption + _outside({"violation": along, LOSS: up}), mark="point", facets={"": Facet(LOSS, up.range)},
        data=_tidy(data, panel="part", series="row"), colors=_colors(rows), x_label="violation",
        x_ranges=dict.fromkeys(parts, along.range), panel_height=4.5,
    )  # fmt: skip


def _along_steps(results: Results) -> bool:
    several = results.study.records > 1
    return several and not results.tuning and set(BOTH) <= set(results.measured)


def _on_validation(results: Results) -> bool:
    return results.study.records > 1 and "validation" in results.measured


PLOTS: dict[str, ReportItem] = {
    "curves": ReportItem("Along the steps, training and test examples", _along_steps, curves),
    "seconds": ReportItem(
        "Along the seconds, training and test examples",
        lambda r: _along_steps(r) and bool(set(r.seconds) & set(r.stored)),
        seconds,
    ),
    "validation": ReportItem(
        "Along the steps on validation examples", _on_validation, lambda r: curves(r, ("validation",))
    ),
    "scores": ReportItem("Scores by group", lambda r: not r.tuning, scores),
    "radar": ReportItem("Fairness metrics", lambda r: not r.tuning, radar),
    "trade-off": ReportItem("Loss against violation", lambda r: True, trade_off),
}


def _tidy(data: pd.DataFrame, **names: str) -> pd.DataFrame:
    """Columns under the names that a figure has; what is not finite is not drawn."""
    named = data.assign(**{name: data[column] for name, column in names.items()})
    return named.replace([math.inf, -math.inf], math.nan).reset_index(drop=True)


def _colors(names: Sequence[str]) -> dict[str, str]:
    return {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}


def _thinned(curve: pd.DataFrame) -> pd.DataFrame:
    """At most `MAX_RECORDS`, evenly spaced, the first and the last among them."""
    places = np.unique(np.linspace(0, len(curve) - 1, min(len(curve), MAX_RECORDS)).round().astype(int))
    return curve.iloc[places]


# An axis for many methods ---------------------------------------------------------------------------------------------


class SharedAxis(NamedTuple):
    """What an axis shows."""

    range: Range
    beyond: dict[str, Range]  # by method, the extent of those outside it
    not_finite: list[str]  # methods with a value that no axis can show


def shared_axis(data: pd.DataFrame, columns: Sequence[str], also: Sequence[float] = ()) -> SharedAxis:
    """For the values of all methods ("row") in some columns, and for the numbers in `also`.

    Panels share an axis so that they can be compared. A method whose loss reached 10^6 would make flat lines of all the
    others: it is cut off instead, and the caption says so. Most methods span the range between the quartiles of
    their least and of their greatest values; one that goes beyond it by more than `FAR` widths does not decide.

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
    margin = FAR * max(max(ends) - min(ends), TYPICAL_WIDTH)
    outside = (low < min(ends) - margin) | (high > max(ends) + margin)
    outside &= not outside.all()
    beyond = {str(row): (float(low[row]), float(high[row])) for row in low.index[outside]}
    return SharedAxis(_padded([*low[~outside], *high[~outside], *also]), beyond, not_finite)


def _padded(numbers: Sequence[float], margin: float = 0.05) -> Range:
    """From the least to the greatest, with a margin."""
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
    words = f". Beyond the axis, which the other methods set: {', '.join(beyond_axis)}" if beyond_axis else ""
    diverged = dict.fromkeys(name for axis in axes.values() for name in axis.not_finite)
    return words + (f". Not finite, and there not drawn: {', '.join(diverged)}" if diverged else "")
