"""An audit as one HTML page: the question, figures and tables in a single file that needs no
network, now or later.

What the page says beside its numbers is in `reports/templates/audit.html`, which escapes everything
that comes from the user: names of groups and columns, the source, notes.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairbound._utils.files import write_text
from fairbound._utils.sentences import counted
from fairbound.auditing import _figures as figures
from fairbound.auditing._audits import Audit, GroupAudit
from fairbound.auditing._comparisons import Comparison
from fairbound.auditing._headline import answers
from fairbound.auditing._text import (
    RATE_WORDS,
    capital,
    ends,
    excludes_zero,
    explained,
    interval,
    number,
    percent,
    title,
    why_no_rate,
    why_undefined,
)
from fairbound.metrics._intervals import UNDEFINED, IntervalEstimate
from fairbound.metrics.fairness_metrics import GroupPair
from fairbound.reports._page import TableCell, render

# groups in a table of the page: more make it megabytes, and the CSV and JSON files have all
MAX_LISTED = 300
COUNTS = {
    "true_positives": "TP",
    "false_positives": "FP",
    "true_negatives": "TN",
    "false_negatives": "FN",
}
SCORED = {"auc": "AUC", "calibration_gap": "Mean score minus share with label 1", "loss": "Loss"}
AMONG = {  # error rate -> the label that it is about, and its examples
    "false_positive_rate": (0, ("false_positives", "true_negatives")),
    "false_negative_rate": (1, ("false_negatives", "true_positives")),
}
GAPS = (
    "demographic_parity_difference",
    "equalized_odds_difference",
    "accuracy_difference",
    "largest_loss_gap",
)

# title, sentences, headings, lines
Opening = tuple[str, Sequence[str], Sequence[str], Sequence[Sequence[TableCell]]]


def page(audit: Audit, *, heading: str = "", command: str = "") -> str:
    """The whole page as text; `heading` is its title, `command` the one that made it.

    >>> from fairbound.auditing import audit
    >>> html = page(
    ...     audit(
    ...         [1, 0, 1, 0], [0, 0, 1, 1], predictions=[1, 0, 0, 0], names=["<A>", "B"], draws=500
    ...     )
    ... )
    >>> "&lt;A&gt;" in html, "<A>" in html
    (True, False)
    """
    made = "score" if audit.threshold is not None else "prediction"
    rule = (
        "as given"
        if audit.threshold is None
        else f"1 where the score is at least {audit.threshold:g}"
    )
    rows = counted(audit.examples, "example")
    details = {
        "File": audit.source,
        "Label": audit.label,
        made.capitalize(): audit.made,
        "Predictions": rule,
        "Examples": (
            rows if audit.examples >= audit.rows else f"{rows} of {counted(audit.rows, 'row')}"
        ),
        "Condition": audit.where,
        "Missing values": f"{counted(audit.missing, 'example')} dropped" if audit.missing else "",
        "In no group": counted(audit.dropped, "example") if audit.dropped else "",
        "Groups": f"{len(audit.groups):,}, by {' x '.join(audit.attributes)}",
        "Reference group": audit.reference,
        "Intervals": _level(audit),
    }
    threshold = f", threshold {audit.threshold:g}" if audit.threshold is not None else ""
    line = [audit.source, rows, f"label {audit.label}", f"{made} {audit.made}{threshold}"]
    return render(
        "audit.html",
        title=heading or f"Fairness audit{': ' if audit.source else ''}{audit.source}",
        line=[
            words
            for words, known in zip(line, (heading, rows, audit.label, audit.made), strict=True)
            if known
        ],
        synthetic=audit.source.startswith("synthetic"),
        details=_known(details, command),
        whole=_view(audit),
        parts=[_view(part) for part in audit.parts],
        level=_level(audit),
    )


def comparison_page(
    comparison: Comparison, *, heading: str = "", command: str = "", opening: Sequence[Opening] = ()
) -> str:
    """The page of two audits as text; `opening` comes before what is known about them."""
    first, second = comparison.first, comparison.second
    headings = {rate: title(rate) for rate in RATE_WORDS} | {"auc": "AUC", "loss": "Loss"}
    shown = [
        name for name in headings if all(name in changes for changes in comparison.groups.values())
    ]
    sizes = {group.name: [group.examples] for group in first.groups}
    for group in second.groups:
        sizes.setdefault(group.name, []).append(group.examples)
    listed = sorted(comparison.groups, key=lambda name: -sizes[name][0])[:MAX_LISTED]
    gaps = {name: comparison.metrics[name] for name in GAPS if name in comparison.metrics}
    details = {
        "First": f"{comparison.names[0]}: {counted(first.examples, 'example')}",
        "Second": f"{comparison.names[1]}: {counted(second.examples, 'example')}",
        "Label": first.label,
        "Condition": first.where,
        "Groups in both": f"{len(comparison.groups):,}, by {' x '.join(first.attributes)}",
        "Intervals": _level(first),
    }
    return render(
        "comparison.html",
        title=heading or f"Comparison of two audits: {', '.join(comparison.names)}",
        names=comparison.names,
        opening=opening,
        details=_known(details, command),
        caveats=comparison.notes,
        synthetic=any(audit.source.startswith("synthetic") for audit in (first, second)),
        smaller=[explained(name)[0] for name, gap in gaps.items() if (gap.high or 0) < 0],
        larger=[explained(name)[0] for name, gap in gaps.items() if (gap.low or 0) > 0],
        metric_lines=[[*_changed_metric(comparison, name)] for name in comparison.metrics],
        rates=figures.compared_rates(comparison),
        shown=min(figures.MAX_GROUPS, len(comparison.groups)),
        only_first=_some(comparison.only_first),
        only_second=_some(comparison.only_second),
        group_headings=[
            "Group",
            "Examples, first",
            "Examples, second",
            *(headings[name] for name in shown),
        ],
        group_lines=[
            [
                TableCell(name, name),
                *(TableCell(f"{size:,}", size) for size in sizes[name]),
                *(
                    _change_cell(comparison.groups[name][rate], "undefined in one of the two")
                    for rate in shown
                ),
            ]
            for name in listed
        ],
        audits=[_view(first), _view(second)],
        level=_level(first),
    )


def write_page(
    found: Audit | Comparison, path: str | Path, *, heading: str = "", command: str = ""
) -> Path:
    """Write the page; a page that was there is replaced in one step, so that no reader sees half of
    one."""
    make: Any = comparison_page if isinstance(found, Comparison) else page
    write_text(path, make(found, heading=heading, command=command))
    return Path(path)


def _known(details: dict[str, str], command: str) -> dict[str, str]:
    """What is known about an audit, and how the page was made."""
    made = f"{datetime.date.today().isoformat()}, fairbound {version('fairbound')}"
    return {
        name: words
        for name, words in (details | {"Made": made, "Command": command}).items()
        if words
    }


def _level(audit: Audit) -> str:
    return f"{100 * audit.level:g} %"


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (
        f" and {len(names) - most:,} more" if len(names) > most else ""
    )


# Parts of an audit --------------------------------------------------------------------------------


def _view(audit: Audit) -> dict[str, Any]:
    """What the template shows of one partition into groups."""
    listed = figures.largest(audit.groups, MAX_LISTED)
    scored = [name for name in SCORED if any(getattr(group, name) is not None for group in listed)]
    titles = {title(rate): words for rate, words in RATE_WORDS.items()}
    small = sorted(
        (group for group in audit.groups if group not in audit.compared),
        key=lambda group: -group.examples,
    )
    weighted = any(
        abs(sum(group.counts.values()) - group.examples) > 1e-6 * group.examples
        for group in audit.groups
    )
    return {
        "attributes": " x ".join(audit.attributes),
        "reference": audit.reference,
        "notes": audit.notes,
        "group_count": len(audit.groups),
        "answers": [
            (answer, [[*_answer_cells(line, answer.rate)] for line in answer.lines])
            for answer in answers(audit)
        ],
        "small": _some(
            [f"{group.name} ({group.examples:,})" for group in small if group.examples], 20
        ),
        "min_size": audit.min_size,
        "rates": figures.rates(audit),
        "shown": min(figures.MAX_GROUPS, len(audit.groups)),
        "rate_words": {title(rate): RATE_WORDS[rate] for rate in figures.PANELS},
        "scores": figures.scores(audit) if audit.bins else None,
        "roc": figures.roc(audit) if audit.bins else None,
        "calibration": figures.calibration(audit) if audit.bins else None,
        "probabilities": audit.probabilities,
        "outlined": len(figures.scored_groups(audit)),
        "metric_lines": [[*_metric_cells(audit, name)] for name in audit.metrics],
        "weighted": weighted,
        "group_headings": [
            "Group",
            "Examples",
            *COUNTS.values(),
            *titles,
            *(SCORED[name] for name in scored),
        ],
        "group_titles": titles | {short: title(count).lower() for count, short in COUNTS.items()},
        "group_lines": [[*_group_cells(group, audit.reference, scored)] for group in listed],
    }


def _answer_cells(line: tuple[GroupAudit, Any], rate: str) -> Iterator[TableCell]:
    """Group, error rate, and its difference from and ratio to the reference group's."""
    group, gap = line
    label, cells = AMONG[rate]
    among = sum(group.counts[cell] for cell in cells)
    yield TableCell(group.name, small=f"{_count(among)} with label {label}")
    yield TableCell(percent(group.rates[rate].value), small=ends(group.rates[rate], ".1f", 100))
    if gap is None:
        yield from (TableCell("reference"), TableCell(""))
        return
    points = 100 * gap.difference.value
    yield TableCell(
        f"{points:+.1f} points", small=ends(gap.difference, "+.1f", 100), is_alert=gap.beyond_chance
    )
    times = "undefined" if gap.ratio.value is None else f"{gap.ratio.value:.2f} times"
    yield TableCell(
        times,
        small=ends(gap.ratio, ".2f") if times != "undefined" else "the reference group's is 0",
    )


def _count(weight: float) -> str:
    return f"{weight:,.0f}" if weight == round(weight) else f"{weight:,.1f}"


def _metric_cells(audit: Audit, name: str) -> Iterator[TableCell]:
    measured, (words, source) = audit.metrics[name], explained(name)
    yield TableCell(capital(words), words, small=f"{name}: {source}")
    why = why_undefined(audit, name) if measured.value is None else ""
    yield TableCell(number(measured.value), measured.value, small=why)
    yield TableCell(interval(measured), measured.low)
    yield _pair_cell(audit.pairs.get(name))


def _pair_cell(pair: GroupPair | None) -> TableCell:
    if pair is None:
        return TableCell("")
    return TableCell(
        f"{pair.high} and {pair.low}",
        pair.low_examples,
        small=(
            f"{title(pair.of).lower()} {number(pair.high_value)} of {pair.high_examples:,} and "
            f"{number(pair.low_value)} of {pair.low_examples:,} examples"
        ),
    )


def _group_cells(group: GroupAudit, reference: str, scored: Iterable[str]) -> Iterator[TableCell]:
    yield TableCell(group.name, group.name, small="reference" if group.name == reference else "")
    yield TableCell(f"{group.examples:,}", group.examples)
    for count in COUNTS:
        yield TableCell(_count(group.counts[count]), group.counts[count])
    for rate in RATE_WORDS:
        yield _measured_cell(group.rates[rate], why_no_rate(rate))
    for name in scored:
        yield _measured_cell(
            getattr(group, name) or UNDEFINED,
            "needs both labels" if name == "auc" else "no examples",
        )


def _measured_cell(measured: IntervalEstimate, why: str) -> TableCell:
    small = why if measured.value is None else interval(measured)
    return TableCell(number(measured.value), measured.value, small=small)


# Changes ------------------------------------------------------------------------------------------


def _changed_metric(comparison: Comparison, name: str) -> Iterator[TableCell]:
    words, source = explained(name)
    yield TableCell(capital(words), words, small=f"{name}: {source}")
    for audit in (comparison.first, comparison.second):
        yield _measured_cell(audit.metrics[name], why_undefined(audit, name))
    yield _change_cell(comparison.metrics[name], "undefined in one of the two")


def _change_cell(change: IntervalEstimate, why: str) -> TableCell:
    words = "undefined" if change.value is None else f"{change.value:+.3f}"
    return TableCell(
        words,
        change.value,
        small=why if change.value is None else ends(change),
        is_alert=excludes_zero(change),
    )
