"""The figures of a finished experiment, each a `Sheet` that `drawing.save` and `interactive.drawing` show.

over_steps   loss and every bounded gap along the runs, on train and test (the paper's Figures 1 and 2)
validation   the same on the rows that choose settings (Figure 5)
scores       distributions of the scores by group at the end (Figure 3)
spiders      the fairness metrics of each method at the end (Figure 4)
trade_off    loss against violation at the end

Where a method leaves the axis that it shares with the others, the words of the sheet say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbound.benchmark.axes import Axis, not_finite, shared
from fairbound.benchmark.figure_specs import (
    BLUE,
    COLORS,
    GREEN,
    MARKERS,
    ORANGE,
    PURPLE,
    Line,
    Panel,
    Point,
    Range,
    Sheet,
)
from fairbound.benchmark.results import LOSS, Curve, Ending, Gap, Values
from fairbound.benchmark.summary import Line as Summary

PART_COLORS = {"train": BLUE, "test": ORANGE, "validation": GREEN, "dual": PURPLE}
PART_WORDS = {"train": "train", "test": "test", "validation": "validation", "dual": "dual"}
COLUMNS = 6  # methods beside each other; more continue below
BOTH = ("train", "test")
SHARES = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)  # at which the axis of scores has numbers
MOST = 120  # records of a curve that are drawn: a panel is about as many pixels wide


class Quantity(NamedTuple):
    """A row of panels."""

    name: str
    label: str
    limits: tuple[float, ...]
    range: Range


def over_steps(
    curves: Mapping[str, Curve],
    gaps: Sequence[Gap],
    *,
    seconds: Mapping[str, float] | None = None,
    parts: Sequence[str] = BOTH,
) -> Sheet:
    """A column for each method, a row for the loss and for each gap; with `seconds` per step, the time of those rows.

    A number of steps says nothing about another method's, so each column has its own axis of steps; seconds share one.
    """
    shown = {name: curve for name, curve in curves.items() if seconds is None or name in seconds}
    _refuse_nothing(shown, "seconds per step are given for none of the rows")
    _refuse_absent(shown, parts)
    pace = {name: 1.0 if seconds is None else seconds[name] for name in shown}
    ends = {name: float(curve.step[-1]) * pace[name] for name, curve in shown.items()}
    if seconds is not None:
        ends = dict.fromkeys(ends, max(ends.values()))
    unit = "steps" if seconds is None else "seconds"
    of_loss, of_gaps = _axis(shown, [LOSS], parts), _axis(shown, [g.name for g in gaps], parts, _limits(gaps))
    quantities = _quantities(gaps, of_loss.range, of_gaps.range)

    def column(name: str, first: bool) -> list[Panel]:
        return [
            Panel(
                title=name if quantity is quantities[0] else "",
                x_label=unit if quantity is quantities[-1] else "",
                y_label=quantity.label if first else "",
                x_range=(0.0, ends[name]),
                y_range=quantity.range,
                lines=tuple(_line(shown[name], part, quantity.name, pace[name]) for part in parts),
                limits=quantity.limits,
            )
            for quantity in quantities
        ]

    over = " and ".join(PART_WORDS[part] for part in parts)
    words = f"Loss and bounded gaps over {unit} on {over}: mean over runs, band between quartiles, bounds dashed"
    words += _left_out({LOSS: of_loss, "a gap": of_gaps}, not_finite(_bands(shown, [LOSS], parts)))
    return Sheet(words=words, rows=_blocks(list(shown), column), panel_height=1.35)


def validation(curves: Mapping[str, Curve], gaps: Sequence[Gap], rows: Sequence[str] | None = None) -> Sheet:
    """Loss and gaps on the rows that choose settings, for the rows named, in their order."""
    chosen = list(curves) if rows is None else list(rows)
    unknown = [name for name in chosen if name not in curves]
    if unknown:
        raise ValueError(f"no run of {unknown[0]!r} is stored; the rows with runs are {', '.join(curves)}")
    return over_steps({name: curves[name] for name in chosen}, gaps, parts=("validation",))


def scores(endings: Mapping[str, Ending], groups: Sequence[str], parts: Sequence[str] = BOTH) -> Sheet:
    """A column for each method, a row for each part: the outline of every group's histogram.

    The axis of shares is that of square roots: a method that is sure of many people has one bin above all others.
    """
    _refuse_nothing(endings, "no run is stored")
    top = max(float(np.sqrt(ending.scores[part]).max()) for ending in endings.values() for part in parts)
    ticks = tuple((share**0.5, f"{share:.0%}") for share in SHARES if share**0.5 <= 1.05 * top)

    def column(name: str, first: bool) -> list[Panel]:
        return [
            Panel(
                title=name if at == 0 else "",
                x_label="score" if at == len(parts) - 1 else "",
                y_label=f"share, {PART_WORDS[part]}" if first else "",
                y_range=(0.0, 1.05 * top),
                y_ticks=ticks,
                lines=tuple(
                    _outline(group, COLORS[g % len(COLORS)], endings[name].scores[part][g])
                    for g, group in enumerate(groups)
                ),
            )
            for at, part in enumerate(parts)
        ]

    words = "Distribution of scores by group: share of the group in each bin on an axis of roots, mean over runs"
    return Sheet(words=words, rows=_blocks(list(endings), column), panel_height=1.7)


def spiders(endings: Mapping[str, Ending], parts: Sequence[str] = BOTH) -> Sheet:
    """A spider for each method: every metric as a share of the largest one among all methods, which the spoke names."""
    _refuse_nothing(endings, "no run is stored")
    names = list(next(iter(endings.values())).metrics[parts[0]])
    table = {(row, part): np.array(list(e.metrics[part].values())) for row, e in endings.items() for part in parts}
    largest = np.array([_largest(column) for column in np.array(list(table.values())).T])
    rim = np.where(largest > 0, largest, 1.0)
    places = np.arange(len(names), dtype=np.float64)
    spokes = tuple(f"{name}\n{top:.2g}" for name, top in zip(names, largest, strict=True))

    def column(row: str, first: bool) -> list[Panel]:
        lines = (
            Line(label=PART_WORDS[part], color=PART_COLORS[part], x=places, y=table[row, part] / rim) for part in parts
        )
        return [Panel(title=row, spokes=spokes, lines=tuple(lines))]

    words = "Fairness metrics at the end, mean over runs: smaller is better, the rim is the number at each spoke"
    return Sheet(words=words, rows=_blocks(list(endings), column, most=4), panel_height=2.2)


def trade_off(summaries: Mapping[str, Sequence[Summary]]) -> Sheet:
    """A panel for each part: what every method loses, against how far it is from the bound (`summary`'s lines)."""
    lines = [line for listed in summaries.values() for line in listed]
    _refuse_nothing(lines, "no run is stored")
    names = list(dict.fromkeys(line.row for line in lines))
    violation, loss = (_whiskers(lines, kind) for kind in ("violation", "loss"))
    along, up = shared(violation), shared(loss)
    panels = tuple(
        Panel(
            title=PART_WORDS[part], x_label="violation", y_label="loss" if at == 0 else "",
            x_range=along.range, y_range=up.range,
            points=tuple(_point(line, names.index(line.row)) for line in listed),
        )
        for at, (part, listed) in enumerate(summaries.items())
    )  # fmt: skip
    words = "Loss against violation, mean over runs with one standard deviation to each side"
    words += _left_out({"violation": along, "loss": up}, not_finite(loss))
    return Sheet(words=words, rows=(panels,), panel_height=4.0)


def _blocks(
    names: Sequence[str], column: Callable[[str, bool], list[Panel]], most: int = COLUMNS
) -> tuple[tuple[Panel, ...], ...]:
    """Columns of panels beside each other; where they are too many, in blocks of about one size below each other."""
    count = -(-len(names) // most)
    size = -(-len(names) // count)
    rows: list[tuple[Panel, ...]] = []
    for start in range(0, len(names), size):
        rows += zip(*(column(name, i == 0) for i, name in enumerate(names[start : start + size])), strict=True)
    return tuple(rows)


def _line(curve: Curve, part: str, quantity: str, pace: float) -> Line:
    band, kept = curve.measured[part][quantity], _thinned(len(curve.step))
    return Line(
        label=PART_WORDS[part],
        color=PART_COLORS[part],
        x=curve.step[kept] * np.float64(pace),
        y=band.mean[kept],
        band=(band.low[kept], band.high[kept]) if curve.runs > 1 else None,
    )


def _thinned(records: int) -> NDArray[np.int64]:
    """Places of at most `MOST` records, evenly spaced, the first and the last among them."""
    return np.unique(np.linspace(0, records - 1, min(records, MOST)).round().astype(np.int64))


def _outline(group: str, color: str, shares: Values) -> Line:
    edges = np.linspace(0.0, 1.0, len(shares) + 1)
    hover = [f"{share:.2%} between {a:.3g} and {b:.3g}" for share, a, b in zip(shares, edges, edges[1:], strict=False)]
    heights = np.sqrt(np.append(shares, shares[-1]))
    return Line(label=group, color=color, x=edges, y=heights, steps=True, hover=(*hover, hover[-1]))


def _point(line: Summary, number: int) -> Point:
    return Point(
        label=line.row, color=COLORS[number % len(COLORS)], marker=MARKERS[number % len(MARKERS)],
        x=line.violation.mean, y=line.loss.mean, x_error=line.violation.std, y_error=line.loss.std,
    )  # fmt: skip


def _quantities(gaps: Sequence[Gap], losses: Range, scale: Range) -> list[Quantity]:
    """The loss, and the gaps on one scale."""
    labels = [f"|{gap.name}|" if gap.absolute else gap.name for gap in gaps]
    bounded = [Quantity(gap.name, label, gap.limits, scale) for gap, label in zip(gaps, labels, strict=True)]
    return [Quantity(LOSS, LOSS, (), losses), *bounded]


def _limits(gaps: Sequence[Gap]) -> list[float]:
    return [limit for gap in gaps for limit in gap.limits]


def _axis(
    curves: Mapping[str, Curve], quantities: Sequence[str], parts: Sequence[str], limits: Sequence[float] = ()
) -> Axis:
    return shared(_bands(curves, quantities, parts), limits)


def _bands(curves: Mapping[str, Curve], quantities: Sequence[str], parts: Sequence[str]) -> dict[str, list[Values]]:
    """All that is drawn of every method."""
    return {
        name: [numbers for part in parts for quantity in quantities for numbers in curve.measured[part][quantity]]
        for name, curve in curves.items()
    }


def _whiskers(lines: Sequence[Summary], kind: Literal["loss", "violation"]) -> dict[str, list[Values]]:
    """From a standard deviation below to one above the mean, for every method."""
    found: dict[str, list[Values]] = {}
    for line in lines:
        mean, std = line.loss if kind == "loss" else line.violation
        found.setdefault(line.row, []).append(np.array([mean - std, mean + std]))
    return found


def _left_out(axes: Mapping[str, Axis], diverged: Sequence[str]) -> str:
    """What the axes do not show, in words."""
    said = [
        f"{name} ({what} from {low:.3g} to {high:.3g})"
        for what, axis in axes.items()
        for name, (low, high) in axis.beyond.items()
    ]
    words = f". Beyond the axis, which the other methods set: {', '.join(said)}" if said else ""
    return words + (f". Not finite, and there not drawn: {', '.join(diverged)}" if diverged else "")


def _largest(numbers: Values) -> float:
    finite = numbers[np.isfinite(numbers)]
    return float(finite.max()) if len(finite) else 0.0


def _refuse_nothing(shown: Sized, why: str) -> None:
    if not shown:
        raise ValueError(f"there is nothing to draw: {why}")


def _refuse_absent(curves: Mapping[str, Curve], parts: Sequence[str]) -> None:
    for name, curve in curves.items():
        for part in parts:
            if part not in curve.measured:
                raise ValueError(f"{name!r} was not measured on {part!r}; its parts are {', '.join(curve.measured)}")
