"""The figures of an audit's page: rates, score distributions, ROC curves and calibration by group;
two audits side by side. Names of groups are whole, in as many lines as they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairbound.auditing._audits import Audit, GroupAudit
from fairbound.auditing._comparisons import Comparison
from fairbound.auditing._findings import SMALL_GROUP, named, title, why_no_rate
from fairbound.metrics._counts import Counts
from fairbound.metrics._intervals import IntervalEstimate
from fairbound.reports._figures import (
    COLORS,
    DASHES,
    DOT,
    FAINT,
    INK,
    SOFT,
    error_bars,
    in_lines,
    legend,
    panels,
    style,
    titled,
)
from fairbound.reports._page import Section
from fairbound.reports._words import estimate

MAX_GROUPS = 30  # in a figure of rates
MAX_OUTLINES = 10  # in a figure of scores: more cannot be told apart
PANELS = (
    "false_positive_rate",
    "false_negative_rate",
    "positive_rate",
    "base_rate",
    "accuracy",
    "positive_predictive_value",
)
MIN_AXIS_WIDTH = 0.2  # of a rate: below, irrelevant differences would appear large
WIDE, NARROW = 440, 360  # of a panel


def largest(groups: Sequence[GroupAudit], most: int) -> list[GroupAudit]:
    """The groups with the most examples, in the order in which they came."""
    chosen = sorted(range(len(groups)), key=lambda i: -groups[i].examples)[:most]
    return [groups[i] for i in sorted(chosen)]


def scored_groups(audit: Audit) -> list[GroupAudit]:
    """The groups whose scores are drawn: the outline of a few examples is a line of spikes that
    flattens all others."""
    groups = [group for group in audit.groups if group.examples > 0]
    return largest(
        [group for group in groups if group.examples >= SMALL_GROUP] or groups, MAX_OUTLINES
    )


def sections(audit: Audit) -> list[Section]:
    """The figures of one partition into groups, each under its heading."""
    drawn = {"Rates by group": rates(audit)}
    if audit.bins:
        drawn["Scores by group"] = scores(audit)
        drawn["ROC curves by group"] = roc(audit)
        drawn["Calibration by group"] = calibration(audit)
    return [Section(title=heading, body=[figure]) for heading, figure in drawn.items()]


@style()
def rates(audit: Audit) -> Any:
    """A panel for each rate, a row for each group, and the rate over all groups as a line."""
    groups = largest(audit.groups, MAX_GROUPS)
    by_name = {group.name: group for group in groups}
    reference = by_name.pop(audit.reference, None)
    sides = [Side("", by_name, DOT)]
    if reference is not None:
        sides.append(Side("", {audit.reference: reference}, INK))
    figure, drawn = _rates_figure(groups, sides)
    for rate, value in _overall(audit.groups).items():
        if value is not None:
            drawn[rate].axvline(value, color=SOFT, linestyle="--")
    figure.set_label(
        f"Rates of every group with their intervals. Black: the reference group, {audit.reference};"
        f" dashed: all groups. Every panel has its own scale.{_of_all(groups, audit)}"
    )
    return figure


@style()
def compared_rates(comparison: Comparison) -> Any:
    """A panel for each rate, a row for each group in both audits: the first above, the second
    below."""
    first, second = (
        {group.name: group for group in audit.groups}
        for audit in (comparison.first, comparison.second)
    )
    above, below = comparison.names
    groups = largest([first[name] for name in comparison.groups], MAX_GROUPS)
    sides = [Side(f"{above}, ", first, SOFT, -0.16), Side(f"{below}, ", second, DOT, 0.16)]
    figure, _ = _rates_figure(groups, sides)
    figure.set_label(
        f"Rates of every group in both audits. Gray, above: {above}; in color, below: {below}."
        f" Every panel has its own scale.{_of_all(groups, comparison.first)}"
    )
    return figure


@style()
def scores(audit: Audit) -> Any:
    """Outlines of the groups' score histograms, with the threshold."""
    figure, axes = _curves(audit, "score", "share of the group")
    for (color, dash), group in zip(_lines(), scored_groups(audit), strict=False):
        name = f"{group.name} ({group.examples:,})"
        outline = axes.stairs(
            group.histogram, audit.bins, color=color, linestyle=dash, linewidth=1.8
        )
        titled(outline, name).set_label(in_lines(name, 45))
    if audit.threshold is not None:
        axes.axvline(
            audit.threshold, color=INK, linestyle=":", label=f"threshold {audit.threshold:g}"
        )
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:.0%}")
    legend(figure.subfigs[1], [axes])
    figure.set_label(
        "How the scores of every group are spread, in bins of equal width."
        + _of_all(scored_groups(audit), audit)
    )
    return figure


@style()
def roc(audit: Audit) -> Any:
    """The ROC curves of the groups, with their AUC."""
    figure, axes = _curves(audit, title("false_positive_rate"), title("true_positive_rate"))
    axes.plot([0, 1], [0, 1], color=FAINT, linestyle="--")
    for (color, dash), group in zip(_lines(), scored_groups(audit), strict=False):
        if group.roc:
            area = "" if group.auc is None else f"AUC {estimate(*group.auc)}"
            (line,) = axes.plot(
                *zip(*group.roc, strict=True),
                dash,
                color=color,
                label=f"{in_lines(group.name, 45)}\n{area}",
            )
            titled(line, f"{group.name}: {area}")
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    legend(figure.subfigs[1], [axes])
    figure.set_label(
        "For every threshold, the share of the examples with label 1 that is predicted 1 against"
        " that of the examples with label 0. AUC, the area below, is the probability that an"
        " example with label 1 has a higher score than one with label 0."
    )
    return figure


@style()
def calibration(audit: Audit) -> Any:
    """A panel for each group: the share with label 1 by score, with intervals; the diagonal where
    it is calibrated."""
    groups = [group for group in scored_groups(audit) if group.calibration]
    figure, parts = panels(len(groups), 176, 200, columns=6)
    places = [point.score for group in groups for point in group.calibration]
    margin = 0.04 * (max(places) - min(places)) if places else 0.0
    for panel, group in zip(parts, groups, strict=True):
        axes = panel.subplots()
        axes.set(xlim=(min(places) - margin, max(places) + margin), ylim=(-0.02, 1.02))
        axes.set_title(in_lines(group.name, 17), fontsize=11)
        axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        axes.locator_params(axis="x", nbins=4)
        if audit.probabilities:
            axes.plot([0, 1], [0, 1], color=FAINT, linestyle="--")
        axes.plot(
            *zip(*((point.score, point.rate.value) for point in group.calibration), strict=True),
            color=DOT,
        )
        for point in group.calibration:
            words = (
                f"{group.name}, score {point.score:.3g}: {estimate(*point.rate)},"
                f" {point.examples:,} examples"
            )
            _dot(axes, point.score, point.rate, words, DOT, along="y")
        axes.set_xlabel("mean score" if audit.probabilities else "score")
    figure.set_label(
        "Of the examples with a score, the share whose label is 1, with its interval; "
        + (
            "calibrated scores lie on the dashed line."
            if audit.probabilities
            else "the same score should mean the same in every group."
        )
    )
    return figure


# Parts --------------------------------------------------------------------------------------------


def _of_all(shown: Sequence[GroupAudit], audit: Audit) -> str:
    if len(shown) == len(audit.groups):
        return ""
    return f" The {len(shown):,} largest of {len(audit.groups):,} groups are shown."


def _curves(audit: Audit, x: str, y: str) -> tuple[Any, Any]:
    """Axes in the first of two panels; the second is for the legend."""
    figure, (panel, _) = panels(2, WIDE, max(340, 38 * len(scored_groups(audit)) + 30), columns=2)
    axes = panel.subplots()
    axes.set(xlabel=x, ylabel=y)
    return figure, axes


def _lines() -> list[tuple[str, str]]:
    return [(color, dash) for dash in DASHES for color in COLORS]


class Side(NamedTuple):
    """Groups by name that look alike in a figure of rates."""

    label: str
    groups: Mapping[str, GroupAudit]
    color: str
    shift: float = 0.0  # within a group's row


def _rates_figure(
    groups: Sequence[GroupAudit], sides: Sequence[Side]
) -> tuple[Any, dict[str, Any]]:
    """The figure, and its axes by rate, with a row for each group."""
    labels = [in_lines(group.name, 22) for group in groups]
    line = 12 + 13 * max((label.count("\n") + 1 for label in labels), default=1)
    shown = [rate for rate in PANELS if rate in groups[0].rates]
    figure, parts = panels(len(shown), NARROW, line * len(labels) + 56)
    drawn = {}
    for rate, panel in zip(shown, parts, strict=True):
        drawn[rate] = axes = panel.subplots()
        axes.set_title(title(rate))
        axes.set_yticks(range(len(labels)), labels, fontsize=11, linespacing=0.95)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xlim(
            _range(
                [
                    side.groups[group.name].rates[rate]
                    for side in sides
                    for group in groups
                    if group.name in side.groups
                ]
            )
        )
        for side in sides:
            for row, name in enumerate(group.name for group in groups):
                group = side.groups.get(name)
                if group is not None:
                    measured = group.rates[rate]
                    words = (
                        f"{side.label}{name}: {named(rate)} {estimate(*measured)},"
                        f" {group.examples:,} examples"
                    )
                    at = row + side.shift
                    _dot(axes, at, measured, words, side.color, missing=why_no_rate(rate))
    return figure, drawn


def _dot(
    axes: Any,
    row: float,
    measured: IntervalEstimate,
    words: str,
    color: str,
    along: str = "x",
    missing: str = "",
) -> None:
    """A dot and its interval in a row, or with along="y" in a column; the limits of the axes are
    set before."""
    if measured.value is None:
        axes.text(0.02, row, missing, color=SOFT, va="center", transform=axes.get_yaxis_transform())
        return
    at = (measured.value, row) if along == "x" else (row, measured.value)
    if measured.low is not None and measured.high is not None:
        error_bars(axes, at, **{f"{along}_ends": (measured.low, measured.high)}, color=color)
    titled(
        axes.plot(*at, "o", color=color, markersize=7 if along == "x" else 5, clip_on=False)[0],
        words,
    )


def _range(measured: Sequence[IntervalEstimate]) -> tuple[float, float]:
    """From the lowest to the highest end of an interval, with a margin, between 0 and 1 and not too
    narrow."""
    ends = [end for estimate in measured for end in estimate if end is not None] or [0.0, 1.0]
    low, high = min(ends), max(ends)
    margin = max(0.04 * (high - low), (MIN_AXIS_WIDTH - (high - low)) / 2)
    return max(-0.01, low - margin), min(1.01, high + margin)


def _overall(groups: Sequence[GroupAudit]) -> Mapping[str, float | None]:
    """The rates of all groups together, from the sums of their counts."""
    cells = ("false_positives", "true_negatives", "false_negatives", "true_positives")
    if not set(cells) <= set(groups[0].counts):
        return {}
    fp, tn, fn, tp = (sum(group.counts[cell] for group in groups) for cell in cells)
    counts = Counts.from_cells({"overall": (fp, tn, fn, tp)})
    return {rate: counts.rate(rate)[0] for rate in PANELS if rate in groups[0].rates}
