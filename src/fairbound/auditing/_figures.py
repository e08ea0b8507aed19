"""The figures of an audit's page: rates, score distributions, ROC curves and calibration by group;
two audits side by side. Names of groups are whole, in as many lines as they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any, NamedTuple

from fairbound.auditing._audits import Audit, GroupAudit
from fairbound.auditing._comparisons import Comparison
from fairbound.auditing._findings import SMALL_GROUP, named, title, why_no_rate
from fairbound.metrics._counts import Counts
from fairbound.metrics._intervals import IntervalEstimate
from fairbound.reports._figures import (
    DOT,
    FAINT,
    INK,
    SOFT,
    error_bars,
    legend,
    look,
    panels,
    style,
    titled,
)
from fairbound.reports._page import PageSection
from fairbound.reports._words import estimate

MAX_DRAWN_GROUPS = 30  # in a figure of rates
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


def largest_groups(groups: Sequence[GroupAudit], most: int) -> list[GroupAudit]:
    """The groups with the most examples, in the order in which they came."""
    chosen = sorted(range(len(groups)), key=lambda i: -groups[i].examples)[:most]
    return [groups[i] for i in sorted(chosen)]


def scored_groups(audit: Audit) -> list[GroupAudit]:
    """The groups whose scores are drawn: the outline of a few examples is a line of spikes that
    flattens all others."""
    groups = [group for group in audit.groups if group.examples > 0]
    large = [group for group in groups if group.examples >= SMALL_GROUP]
    return largest_groups(large or groups, MAX_OUTLINES)


def sections(audit: Audit) -> list[PageSection]:
    """The figures of one partition into groups, each under its heading."""
    drawn = {"Rates by group": rates(audit)}
    if audit.bins:
        drawn["Scores by group"] = scores(audit)
    if audit.bins and audit.labeled:
        drawn["ROC curves by group"] = roc(audit)
        drawn["Calibration by group"] = calibration_curves(audit)
    return [PageSection(title=heading, body=[figure]) for heading, figure in drawn.items()]


@style()
def rates(audit: Audit) -> Any:
    """A panel for each rate, a row for each group, and the rate over all groups as a line."""
    groups = largest_groups(audit.groups, MAX_DRAWN_GROUPS)
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
    groups = largest_groups([first[name] for name in comparison.groups], MAX_DRAWN_GROUPS)
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
    groups = scored_groups(audit)
    for place, group in enumerate(groups):
        name = f"{group.name} ({group.examples:,})"
        outline = axes.stairs(group.histogram, audit.bins, **look(place), linewidth=1.8)
        titled(outline, name).set_label(fill(name, 45))
    if audit.threshold is not None:
        axes.axvline(
            audit.threshold, color=INK, linestyle=":", label=f"threshold {audit.threshold:g}"
        )
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:.0%}")
    legend(figure.subfigs[1], [axes])
    figure.set_label(
        "How the scores of every group are spread, in bins of equal width." + _of_all(groups, audit)
    )
    return figure


@style()
def roc(audit: Audit) -> Any:
    """The ROC curves of the groups, with their AUC."""
    figure, axes = _curves(audit, title("false_positive_rate"), title("true_positive_rate"))
    axes.plot([0, 1], [0, 1], color=FAINT, linestyle="--")
    for place, group in enumerate(scored_groups(audit)):
        if group.roc:
            area = "" if group.auc is None else f"AUC {estimate(*group.auc)}"
            label = f"{fill(group.name, 45)}\n{area}"
            (line,) = axes.plot(*zip(*group.roc, strict=True), **look(place), label=label)
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
def calibration_curves(audit: Audit) -> Any:
    """A panel for each group: the share with label 1 by score, with intervals; the diagonal where
    it is calibrated."""
    groups = [group for group in scored_groups(audit) if group.calibration]
    figure, parts = panels(len(groups), 176, 200, columns=6)
    scores = [point.score for group in groups for point in group.calibration]
    for panel, group in zip(parts, groups, strict=True):
        axes = panel.subplots()
        margin = 0.04 * (max(scores) - min(scores))
        axes.set(xlim=(min(scores) - margin, max(scores) + margin), ylim=(-0.02, 1.02))
        axes.set_title(fill(group.name, 17), fontsize=11)
        axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        axes.locator_params(axis="x", nbins=4)
        if audit.probabilities:
            axes.plot([0, 1], [0, 1], color=FAINT, linestyle="--")
        axes.plot(*zip(*((p.score, p.rate.value) for p in group.calibration)), color=DOT)  # noqa: B905
        for score, rate, examples in group.calibration:
            words = f"{group.name}, score {score:.3g}: {estimate(*rate)}, {examples:,} examples"
            _dot(axes, score, rate, words, DOT, along="y")
        axes.set_xlabel("mean score" if audit.probabilities else "score")
    what_is_fair = "the same score should mean the same in every group."
    if audit.probabilities:
        what_is_fair = "calibrated scores lie on the dashed line."
    figure.set_label(
        "Of the examples with a score, the share whose label is 1, with its interval;"
        f" {what_is_fair}"
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
    labels = [fill(group.name, 22) for group in groups]
    line = 12 + 13 * max((label.count("\n") + 1 for label in labels), default=1)
    shown = [rate for rate in PANELS if rate in groups[0].rates]
    figure, parts = panels(len(shown), NARROW, line * len(labels) + 56)
    drawn = {}
    for rate, panel in zip(shown, parts, strict=True):
        drawn[rate] = axes = panel.subplots()
        axes.set_title(title(rate))
        axes.set_yticks(range(len(labels)), labels, fontsize=11, linespacing=0.95)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        rows = [
            (row, side, side.groups[group.name])
            for side in sides
            for row, group in enumerate(groups)
            if group.name in side.groups
        ]
        axes.set_xlim(_range([group.rates[rate] for _, _, group in rows]))
        for row, side, group in rows:
            words = (
                f"{side.label}{group.name}: {named(rate)} {estimate(*group.rates[rate])},"
                f" {group.examples:,} examples"
            )
            at = row + side.shift
            _dot(axes, at, group.rates[rate], words, side.color, missing=why_no_rate(rate))
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
    size = 7 if along == "x" else 5
    titled(axes.plot(*at, "o", color=color, markersize=size, clip_on=False)[0], words)


def _range(measured: Sequence[IntervalEstimate]) -> tuple[float, float]:
    """From the lowest to the highest end of an interval, with a margin, between 0 and 1 and not too
    narrow."""
    ends = [end for estimate in measured for end in estimate if end is not None] or [0.0, 1.0]
    low, high = min(ends), max(ends)
    margin = max(0.04 * (high - low), (MIN_AXIS_WIDTH - (high - low)) / 2)
    return max(-0.01, low - margin), min(1.01, high + margin)


def _overall(groups: Sequence[GroupAudit]) -> Mapping[str, float | None]:
    """The rates of all groups together, from the sums of their counts."""

    def total(*cells: str) -> float:
        return sum(group.counts.get(cell, 0.0) for group in groups for cell in cells)

    # without labels every example counts as one of label 0
    negatives = total("false_positives", "selected"), total("true_negatives", "not_selected")
    positives = total("false_negatives"), total("true_positives")
    counts = Counts.from_cells({"overall": (*negatives, *positives)})
    return {rate: counts.rate(rate)[0] for rate in PANELS if rate in groups[0].rates}
