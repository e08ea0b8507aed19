"""The figures of an audit's page, by plotly: an overview of metrics, rates by group; score distributions, ROC curves
and calibration by group; two audits side by side.

Each is a function of the audit and of whether the screen is narrow: the same traces in two arrangements. Colors are
CSS variables of the page, such as var(--dot), with values for light, dark and print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fairbound._utils.optional import need
from fairbound._utils.pages import styled
from fairbound.auditing.audits import Audit, GroupAudit
from fairbound.auditing.comparisons import Comparison
from fairbound.auditing.text import SMALL_GROUP, excludes_zero, interval, number, title, why_undefined
from fairbound.metrics.counts import Counts
from fairbound.metrics.intervals import IntervalEstimate

MAX_GROUPS = 30  # in a figure
MAX_OUTLINES = 10  # score distributions visible at once; the legend shows the others
OVERVIEW = ("demographic_parity_difference", "equalized_odds_difference", "accuracy_difference", "largest_loss_gap")
MAX_CALIBRATED = 4  # groups whose calibration is visible at first: intervals of more would overlap
PANELS = (
    "positive_rate", "base_rate", "accuracy", "true_positive_rate", "false_positive_rate", "positive_predictive_value",
)  # fmt: skip
# Okabe and Ito's palette for all kinds of color vision, without its yellow, which is faint on white.
LINES = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "var(--ink)")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MIN_AXIS_WIDTH = 0.2  # of a rate: below, irrelevant differences would appear large


def largest(groups: Sequence[GroupAudit], most: int) -> list[GroupAudit]:
    """The groups with the most examples, in the order in which they came."""
    kept = sorted(range(len(groups)), key=lambda i: -groups[i].examples)[:most]
    return [groups[i] for i in sorted(kept)]


def label(name: str, width: int) -> str:
    """A group's name for plotly, which interprets tags: escaped, in one line or two, without the middle of a long one.

    >>> label("<b>, female", 20), label("American Indian alone, female", 22)
    ('&lt;b&gt;, female', 'American Indian alone,<br>female')
    """
    return "<br>".join(escape(line, quote=False) for line in _lines(name, width))


def _lines(name: str, width: int) -> list[str]:
    if len(name) <= width:
        return [name]
    for separator in (", ", " "):  # between attributes rather than inside one
        at = name.rfind(separator, 0, width + 1)
        start, rest = name[: at + 1].rstrip(), name[at + len(separator) :]
        if at > 0 and len(rest) <= width:
            return [start, rest]
    return [name[:width], "\u2026" + name[1 - width :]]


def overview(audit: Audit, narrow: bool = False) -> Any:
    """The common notions of fairness on one axis, with 0 marked."""
    found = {name: audit.metrics[name] for name in OVERVIEW if name in audit.metrics}
    gaps, end = list(found.values()), _end(list(found.values()))
    figure = _styled(_plotly().Figure(), 48 * len(found) + 60)
    for certain in (True, False):
        rows = [i for i, measured in enumerate(gaps) if excludes_zero(measured) == certain]
        color, words = "var(--alert)" if certain else "var(--dot)", _words(audit, found, rows)
        figure.add_trace(_dots(rows, [_within(gaps[i], end) for i in rows], words, color))
        figure.add_trace(_beyond(rows, [gaps[i] for i in rows], words, color, end))
    _mark_undefined(figure, gaps, ["" if narrow else why_undefined(audit, name) for name in found])
    figure.add_vline(x=0, line={"color": "var(--ink)", "width": 1.5})
    shown = {name: _text(measured) if measured.value is not None else "" for name, measured in found.items()}
    _label_rows(figure, [f"<b>{title(name)}</b><br>{text}" for name, text in shown.items()])
    return figure.update_xaxes(range=[0, 1.02 * end])


def rates(audit: Audit, narrow: bool = False) -> Any:
    """A panel for each rate, a row for each group, and the rate over all groups as a line."""
    groups, overall = largest(audit.groups, MAX_GROUPS), _overall(audit.groups)
    labels = [label(group.name, 15 if narrow else 30) for group in groups]
    columns = 1 if narrow else 3
    figure = _panels(labels, columns)
    for i, rate in enumerate(PANELS):
        _add_rate(figure, audit, groups, rate, overall[rate], {"row": i // columns + 1, "col": i % columns + 1})
    _label_rows(figure, labels)
    return figure


def scores(audit: Audit, narrow: bool = False) -> Any:
    """Outlines of the groups' score histograms, with the threshold."""
    groups, visible = outlined(audit)
    figure = _styled(_plotly().Figure(), 360 + (24 * len(groups) if narrow else 0))
    for i, group in enumerate(sorted(groups, key=lambda group: group not in visible)):
        figure.add_trace(_outline(group, audit.bins, i, group in visible))
    if audit.threshold is not None:
        figure.add_vline(
            x=audit.threshold, line={"color": "var(--ink)", "width": 1.5, "dash": "dot"},
            annotation={"text": f"threshold {audit.threshold:g}", "yanchor": "bottom", "y": 1, "xanchor": "center"},
        )  # fmt: skip
    _legend_below(figure, narrow)
    ends = [audit.bins[0], audit.bins[-1], *([] if audit.threshold is None else [audit.threshold])]
    figure.update_xaxes(title="score", range=[min(ends), max(ends)], showgrid=False)
    return figure.update_yaxes(title="share of the group", rangemode="tozero", tickformat=".0%")


def roc(audit: Audit, narrow: bool = False) -> Any:
    """The ROC curves of the groups, with their AUC."""
    groups, visible = outlined(audit)
    figure = _styled(_plotly().Figure(), 440 + (24 * len(groups) if narrow else 0))
    figure.add_shape(type="line", x0=0, y0=0, x1=1, y1=1, line={"color": "var(--soft)", "width": 1.5, "dash": "dash"})
    for i, group in enumerate(sorted(groups, key=lambda group: group not in visible)):
        if group.roc:
            figure.add_trace(_curve(group, i, group in visible))
    _legend_below(figure, narrow)
    figure.update_xaxes(title=title("false_positive_rate"), range=[-0.01, 1.01], showgrid=True)
    return figure.update_yaxes(title=title("true_positive_rate"), range=[-0.01, 1.01])


def _curve(group: GroupAudit, i: int, visible: bool) -> Any:
    area = "" if group.auc is None else f"AUC {_text(group.auc)}"
    return _plotly().Scatter(
        x=[point[0] for point in group.roc], y=[point[1] for point in group.roc], mode="lines",
        line={"width": 2, "color": LINES[i % len(LINES)], "dash": DASHES[i // len(LINES)]},
        name=f"{label(group.name, 30)}<br>{area}", visible=True if visible else "legendonly",
        hoverinfo="text",
        hovertext=[f"<b>{label(group.name, 60)}</b><br>FPR {x:.3f}, TPR {y:.3f}<br>{area}" for x, y in group.roc],
    )  # fmt: skip


def calibration(audit: Audit, narrow: bool = False) -> Any:
    """The share with label 1 by score, with intervals; on the diagonal where scores are calibrated probabilities."""
    groups, _ = outlined(audit)
    visible = largest(groups, MAX_CALIBRATED)
    figure = _styled(_plotly().Figure(), 440 + (24 * len(groups) if narrow else 0))
    if audit.probabilities:
        line = {"color": "var(--soft)", "width": 1.5, "dash": "dash"}
        figure.add_shape(type="line", x0=0, y0=0, x1=1, y1=1, line=line)
    for i, group in enumerate(sorted(groups, key=lambda group: group not in visible)):
        figure.add_trace(_calibrated(group, i, group in visible))
    _legend_below(figure, narrow)
    figure.update_xaxes(title="mean score" if audit.probabilities else "score", showgrid=True)
    return figure.update_yaxes(title="share with label 1", range=[-0.02, 1.02], tickformat=".0%")


def _calibrated(group: GroupAudit, i: int, visible: bool) -> Any:
    bins, color = group.calibration, LINES[i % len(LINES)]
    whiskers = {
        "type": "data", "symmetric": False, "thickness": 1.5, "width": 4, "color": color,
        "array": [(one.rate.high or 0) - (one.rate.value or 0) for one in bins],
        "arrayminus": [(one.rate.value or 0) - (one.rate.low or 0) for one in bins],
    }  # fmt: skip
    words = [
        f"<b>{label(group.name, 60)}</b><br>score {one.score:.3g}: {_text(one.rate)}<br>{one.examples:,} examples"
        for one in bins
    ]
    return _plotly().Scatter(
        x=[one.score for one in bins], y=[one.rate.value for one in bins], error_y=whiskers, mode="lines+markers",
        line={"width": 1.5, "color": color, "dash": DASHES[i // len(LINES)]}, marker={"size": 7, "color": color},
        name=f"{label(group.name, 30)} ({group.examples:,})", visible=True if visible else "legendonly",
        hoverinfo="text", hovertext=words,
    )  # fmt: skip


def _legend_below(figure: Any, narrow: bool) -> None:
    below = {"orientation": "h", "y": -0.25, "yanchor": "top"}
    figure.update_layout(showlegend=True, legend=below if narrow else {"orientation": "v"})


def compared_rates(comparison: Comparison, narrow: bool = False) -> Any:
    """A panel for each rate, a row for each group in both audits: the first above, the second below."""
    groups = largest([one for one in comparison.first.groups if one.name in comparison.groups], MAX_GROUPS)
    second = {group.name: group for group in comparison.second.groups}
    labels = [label(group.name, 15 if narrow else 30) for group in groups]
    columns = 1 if narrow else 3
    figure = _panels(labels, columns)
    for i, rate in enumerate(PANELS):
        where = {"row": i // columns + 1, "col": i % columns + 1}
        found = []
        for side, color in ((0, "var(--soft)"), (1, "var(--dot)")):
            own = [group if side == 0 else second[group.name] for group in groups]
            found += [group.rates[rate] for group in own]
            words = [
                f"<b>{label(group.name, 60)}</b><br>{escape(comparison.names[side], quote=False)}<br>{title(rate)} "
                f"{_text(group.rates[rate])}<br>{group.examples:,} examples"
                for group in own
            ]
            rows = [row + 0.3 * side - 0.15 for row in range(len(own))]
            figure.add_trace(_dots(rows, [group.rates[rate] for group in own], words, color), **where)
        figure.update_xaxes(range=_range(found), **where)
    _label_rows(figure, labels)
    return figure


def outlined(audit: Audit) -> tuple[list[GroupAudit], list[GroupAudit]]:
    """The groups whose scores are drawn, and those of them that are visible at first."""
    groups = [group for group in largest(audit.groups, MAX_GROUPS) if group.examples > 0]
    # The outline of a few examples is a line of spikes that would flatten all others.
    return groups, largest([group for group in groups if group.examples >= SMALL_GROUP] or groups, MAX_OUTLINES)


def _plotly() -> Any:
    return need("plotly.graph_objects", "report", "The HTML page")


def _panels(labels: Sequence[str], columns: int) -> Any:
    """Empty panels for the rates; space between them is the same number of pixels for any number of groups."""
    line = 36 if any("<br>" in words for words in labels) else 28
    rows, panel, gap = len(PANELS) // columns, line * len(labels) + 12, 66
    inner = rows * panel + (rows - 1) * gap
    figure = need("plotly.subplots", "report", "The HTML page").make_subplots(
        rows, columns, shared_yaxes=True, horizontal_spacing=0.03, vertical_spacing=gap / inner,
        subplot_titles=[f"<b>{title(rate)}</b>" for rate in PANELS],
    )  # fmt: skip
    figure.update_annotations(font={"size": 14})
    return _styled(figure, inner + 70)


def _styled(figure: Any, height: int) -> Any:
    margin = {"l": 8, "r": 16, "t": 34, "b": 36}
    return styled(figure, height).update_layout(margin=margin, showlegend=False, font={"size": 13})


def _label_rows(figure: Any, labels: Sequence[str]) -> None:
    """Rows from top to bottom. Positions are numbers, since plotly reads names such as "2018" as numbers or dates."""
    figure.update_yaxes(
        tickmode="array", tickvals=list(range(len(labels))), ticktext=list(labels),
        range=[len(labels) - 0.5, -0.5], ticks="", ticklabelstandoff=6, tickfont={"size": 12},
    )  # fmt: skip


def _dots(rows: Sequence[float], found: Sequence[IntervalEstimate], words: Sequence[str], color: str) -> Any:
    """A dot and a whisker in each of these rows; the undefined are skipped."""
    there = [(i, measured.value, measured) for i, measured in enumerate(found) if measured.value is not None]
    return _plotly().Scatter(
        x=[value for _, value, _ in there],
        y=[rows[i] for i, _, _ in there],
        error_x={
            "type": "data", "symmetric": False, "thickness": 2, "width": 5, "color": color,
            "array": [0 if measured.high is None else measured.high - value for _, value, measured in there],
            "arrayminus": [0 if measured.low is None else value - measured.low for _, value, measured in there],
        },
        mode="markers", marker={"size": 9, "color": color}, cliponaxis=False,
        hoverinfo="text", hovertext=[words[i] for i, _, _ in there],
    )  # fmt: skip


def _mark_undefined(
    figure: Any, found: Sequence[IntervalEstimate], why: Sequence[str], where: Mapping[str, int] | None = None
) -> None:  # fmt: skip
    for i, measured in enumerate(found):
        if measured.value is None:
            figure.add_annotation(
                text="undefined" + (f": {escape(why[i], quote=False)}" if why[i] else ""), y=i, x=0.02, xref="x domain",
                xanchor="left", showarrow=False, font={"color": "var(--soft)", "size": 12}, **(where or {}),
            )  # fmt: skip


def _add_rate(
    figure: Any, audit: Audit, groups: Sequence[GroupAudit], rate: str, overall: float | None, where: Mapping[str, int]
) -> None:
    found = [group.rates[rate] for group in groups]
    words = [
        f"<b>{label(group.name, 60)}</b><br>{title(rate)} {_text(measured)}<br>{group.examples:,} examples"
        + (f"<br>all groups: {number(overall)}" if overall is not None else "")
        for group, measured in zip(groups, found, strict=True)
    ]
    for chosen in (False, True):  # the reference group has another color
        rows = [i for i, group in enumerate(groups) if (group.name == audit.reference) == chosen]
        color = "var(--ink)" if chosen else "var(--dot)"
        figure.add_trace(_dots(rows, [found[i] for i in rows], [words[i] for i in rows], color), **where)
    _mark_undefined(figure, found, [""] * len(found), where)
    if overall is not None:
        figure.add_vline(x=overall, line={"color": "var(--soft)", "width": 1.5, "dash": "dash"}, **where)
    figure.update_xaxes(range=_range(found), **where)


def _range(found: Sequence[IntervalEstimate]) -> list[float]:
    """From the lowest to the highest end of an interval, with a margin, between 0 and 1 and not too narrow."""
    ends = [end for measured in found for end in measured if end is not None] or [0.0, 1.0]
    low, high = min(ends), max(ends)
    margin = max(0.04 * (high - low), (MIN_AXIS_WIDTH - (high - low)) / 2)
    return [max(-0.01, low - margin), min(1.01, high + margin)]


def _overall(groups: Sequence[GroupAudit]) -> dict[str, float | None]:
    """The rates of all groups together, from the sums of their counts."""
    cells = ("false_positives", "true_negatives", "false_negatives", "true_positives")
    fp, tn, fn, tp = (sum(group.counts[cell] for group in groups) for cell in cells)
    counts = Counts.from_cells({"overall": (fp, tn, fn, tp)})
    return {rate: counts.rate(rate)[0] for rate in PANELS}


def _outline(group: GroupAudit, bins: Sequence[float], i: int, visible: bool) -> Any:
    shares = group.histogram
    words = [
        f"<b>{label(group.name, 60)}</b><br>{share:.1%} between {low:.3g} and {high:.3g}"
        for share, low, high in zip(shares, bins, bins[1:], strict=False)
    ]
    return _plotly().Scatter(
        x=[bins[0], *bins, bins[-1]],
        y=[0, *shares, shares[-1], 0],
        mode="lines", line={"shape": "hv", "width": 2, "color": LINES[i % len(LINES)], "dash": DASHES[i // len(LINES)]},
        name=f"{label(group.name, 30)} ({group.examples:,})", visible=True if visible else "legendonly",
        hoverinfo="text", hovertext=[words[0], *words, words[-1], words[-1]],
    )  # fmt: skip


def _end(found: Sequence[IntervalEstimate]) -> float:
    """Where the axis of gaps ends: with the intervals, but before one that goes far beyond 1, as that of a loss gap
    does when a group has two examples; all others would be too small to see."""
    values = [measured.value for measured in found if measured.value is not None]
    highs = [measured.high for measured in found if measured.high is not None]
    if not values:
        return 1.0
    return min(max([*values, *highs, 0.01]), max([1.0, *(1.2 * value for value in values)]))


def _within(measured: IntervalEstimate, end: float) -> IntervalEstimate:
    return measured._replace(high=None if measured.high is None else min(measured.high, end))


def _beyond(
    rows: Sequence[int], found: Sequence[IntervalEstimate], words: Sequence[str], color: str, end: float
) -> Any:
    """An arrow at the end of the axis for every interval that extends further."""
    there = [i for i, measured in enumerate(found) if measured.high is not None and measured.high > end]
    return _plotly().Scatter(
        x=[end] * len(there), y=[rows[i] for i in there], mode="markers", cliponaxis=False,
        marker={"size": 12, "color": color, "symbol": "triangle-right"}, hoverinfo="text",
        hovertext=[words[i] for i in there],
    )  # fmt: skip


def _words(audit: Audit, found: Mapping[str, IntervalEstimate], rows: Sequence[int]) -> list[str]:
    names = list(found)
    level = f"{100 * audit.level:g} % interval"
    return [f"<b>{title(names[i])}</b><br>{_text(found[names[i]])} ({level})" for i in rows]


def _text(measured: IntervalEstimate) -> str:
    return f"{number(measured.value)} {interval(measured)}".strip()
