"""An audit as one HTML page: figures and tables in a single file that needs no network, now or later.

What the page says beside its numbers is in `_utils/templates/audit.html`, which escapes everything that comes from the
user: names of groups and columns, the source, notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fairbound._utils.files import write_text
from fairbound._utils.pages import TableCell, figure_json, render
from fairbound.auditing.audits import Audit, GroupAudit
from fairbound.auditing.comparisons import Comparison
from fairbound.auditing.figures import (
    MAX_GROUPS,
    OVERVIEW,
    PANELS,
    calibration,
    compared_rates,
    largest,
    outlined,
    overview,
    rates,
    roc,
    scores,
)
from fairbound.auditing.text import RATE_WORDS, excludes_zero, explained, interval, number, title, why_undefined
from fairbound.metrics.fairness_metrics import GroupPair
from fairbound.metrics.intervals import UNDEFINED, IntervalEstimate

MAX_LISTED = 1_000  # groups in the table: more make a page that browsers cannot hold
COUNTS = {"true_positives": "TP", "false_positives": "FP", "true_negatives": "TN", "false_negatives": "FN"}


def page(audit: Audit) -> str:
    """The whole page as text.

    >>> from fairbound.auditing import audit
    >>> html = page(audit([1, 0, 1, 0], [0, 0, 1, 1], predictions=[1, 0, 0, 0], names=["<A>", "B"], draws=500))
    >>> "&lt;A&gt;" in html, "<A>" in html
    (True, False)
    """
    dropped = f"{audit.dropped:,} example{'' if audit.dropped == 1 else 's'}"
    details = {
        "Source": audit.source or "not named",
        "Examples": f"{audit.examples:,}",
        "Groups": f"{len(audit.groups):,}, by {' x '.join(audit.attributes)}",
        "Reference group": audit.reference,
        "Predictions": "as given" if audit.threshold is None else f"1 where the score is at least {audit.threshold:g}",
        "Intervals": f"level {100 * audit.level:g} %",
        "Skipped": f"{dropped} in no group" if audit.dropped else "no examples",
        **({"Dropped": f"{audit.missing:,} examples with missing values"} if audit.missing else {}),
    }
    parts = [_view(part) for part in audit.parts]
    return render("audit.html", source=audit.source, details=details, whole=_view(audit), parts=parts)


def comparison_page(found: Comparison) -> str:
    """The page of two audits as text."""
    first, second = found.first, found.second
    gaps = [name for name in OVERVIEW if name in found.metrics]
    headings = {rate: title(rate) for rate in RATE_WORDS} | {"auc": "AUC", "loss": "Loss"}
    shown = [name for name in headings if all(name in changes for changes in found.groups.values())]
    sizes = {group.name: [group.examples] for group in first.groups}
    for group in second.groups:
        sizes.setdefault(group.name, []).append(group.examples)
    listed = sorted(found.groups, key=lambda name: -sizes[name][0])[:MAX_LISTED]
    details = {
        "First": f"{found.names[0]}: {first.examples:,} examples",
        "Second": f"{found.names[1]}: {second.examples:,} examples",
        "Groups in both": f"{len(found.groups):,}, by {' x '.join(first.attributes)}",
        "Intervals": f"level {100 * first.level:g} %",
    }
    return render(
        "comparison.html",
        names=found.names,
        details=details,
        caveats=found.notes,
        synthetic=any(one.source.startswith("synthetic") for one in (first, second)),
        smaller=[title(name).lower() for name in gaps if (found.metrics[name].high or 0) < 0],
        larger=[title(name).lower() for name in gaps if (found.metrics[name].low or 0) > 0],
        metric_lines=[[*_changed_metric(found, name)] for name in found.metrics],
        rates=figure_json(*(compared_rates(found, narrow) for narrow in (False, True))),
        shown=min(MAX_GROUPS, len(found.groups)),
        only_first=_some(found.only_first),
        only_second=_some(found.only_second),
        group_headings=["Group", "Examples, first", "Examples, second", *(headings[name] for name in shown)],
        group_lines=[
            [
                TableCell(name, name),
                *(TableCell(f"{size:,}", size) for size in sizes[name]),
                *(_change_cell(found.groups[name][rate]) for rate in shown),
            ]
            for name in listed
        ],
        audits=[_view(first), _view(second)],
        level=f"{100 * first.level:g} %",
    )


def _changed_metric(found: Comparison, name: str) -> Iterator[TableCell]:
    yield TableCell(title(name), name, title=name)
    for audit in (found.first, found.second):
        yield TableCell(number(audit.metrics[name].value), audit.metrics[name].value, small=_ends(audit.metrics[name]))
    yield _change_cell(found.metrics[name])
    yield TableCell(explained(name)[0], explained(name)[0])


def _change_cell(change: IntervalEstimate) -> TableCell:
    certain = change.low is not None and change.high is not None and (change.low > 0 or change.high < 0)
    words = "undefined" if change.value is None else f"{change.value:+.3f}"
    return TableCell(words, change.value, small=_ends(change), is_alert=certain)


def _ends(measured: IntervalEstimate) -> str:
    return "" if measured.low is None or measured.high is None else f"[{measured.low:.3f}, {measured.high:.3f}]"


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def write_page(found: Audit | Comparison, path: str | Path) -> Path:
    """Write the page; a page that was there is replaced in one step, so that no reader sees half of one."""
    write_text(path, comparison_page(found) if isinstance(found, Comparison) else page(found))
    return Path(path)


def _view(audit: Audit) -> dict[str, Any]:
    """What the template shows of one partition into groups."""
    gaps = {title(name).lower(): audit.metrics[name] for name in OVERVIEW if name in audit.metrics}
    groups, visible = outlined(audit)
    listed = largest(audit.groups, MAX_LISTED)
    scored = {
        heading: name
        for name, heading in {"auc": "AUC", "calibration_gap": "Mean score minus base rate", "loss": "Loss"}.items()
        if any(getattr(group, name) is not None for group in listed)
    }
    titles = {title(rate): words for rate, words in RATE_WORDS.items()}
    both = (False, True)  # wide and narrow screens
    return {
        "attributes": " x ".join(audit.attributes),
        "reference": audit.reference,
        "notes": audit.notes,
        "group_count": len(audit.groups),
        "apart": [name for name, gap in gaps.items() if excludes_zero(gap)],
        "alike": [name for name, gap in gaps.items() if gap.value is not None and not excludes_zero(gap)],
        "overview": figure_json(*(overview(audit, narrow) for narrow in both)),
        "rates": figure_json(*(rates(audit, narrow) for narrow in both)),
        "shown": min(MAX_GROUPS, len(audit.groups)),
        "rate_words": {title(rate): RATE_WORDS[rate] for rate in PANELS},
        "scores": figure_json(*(scores(audit, narrow) for narrow in both)) if audit.bins else "",
        "roc": figure_json(*(roc(audit, narrow) for narrow in both)) if audit.bins else "",
        "calibration": figure_json(*(calibration(audit, narrow) for narrow in both)) if audit.bins else "",
        "probabilities": audit.probabilities,
        "tiny": sum(0 < group.examples < audit.min_examples for group in audit.groups) if audit.without_tiny else 0,
        "min_examples": audit.min_examples,
        "metric_headings": [
            "Metric",
            "Value",
            "Interval",
            "Groups",
            "What it says",
            "Whose definition",
            *(["Without tiny groups"] if audit.without_tiny else []),
        ],
        "outlined": len(groups),
        "visible": len(visible),
        "metric_lines": [[*_metric_cells(audit, name)] for name in audit.metrics],
        "weighted": any(
            abs(sum(group.counts.values()) - group.examples) > 1e-6 * group.examples for group in audit.groups
        ),
        "group_headings": ["Group", "Examples", *COUNTS.values(), *titles, *scored],
        "group_titles": titles | {short: title(count).lower() for count, short in COUNTS.items()},
        "group_lines": [[*_group_cells(group, audit.reference, scored.values())] for group in listed],
    }


def _metric_cells(audit: Audit, name: str) -> Iterator[TableCell]:
    found, (words, source) = audit.metrics[name], explained(name)
    yield TableCell(title(name), name, title=name)
    why = why_undefined(audit, name) if found.value is None else ""
    yield TableCell(number(found.value), found.value, small=why)
    yield TableCell(interval(found), found.low)
    yield _pair_cell(audit.pairs.get(name))
    yield TableCell(words, words)
    yield TableCell(source, source)
    if audit.without_tiny:
        rest, pair = audit.without_tiny.get(name, UNDEFINED), _pair_cell(audit.pairs_without_tiny.get(name))
        shown = "" if name not in audit.without_tiny else f"{number(rest.value)} {interval(rest)}".strip()
        yield TableCell(shown, rest.value, small=f"{pair.text}; {pair.small}" if pair.text else "")


def _pair_cell(pair: GroupPair | None) -> TableCell:
    if pair is None:
        return TableCell("")
    return TableCell(
        f"{pair.high} and {pair.low}",
        pair.low_examples,
        small=f"{title(pair.of).lower()} {number(pair.high_value)} of {pair.high_examples:,} and "
        f"{number(pair.low_value)} of {pair.low_examples:,} examples",
    )


def _group_cells(group: GroupAudit, reference: str, scored: Iterable[str]) -> Iterator[TableCell]:
    yield TableCell(group.name, group.name, small="reference" if group.name == reference else "")
    yield TableCell(f"{group.examples:,}", group.examples)
    for count in COUNTS:
        held = group.counts[count]
        yield TableCell(f"{held:,.0f}" if held == round(held) else f"{held:,.1f}", held)
    for measured in [
        *(group.rates[rate] for rate in RATE_WORDS),
        *(getattr(group, name) or UNDEFINED for name in scored),
    ]:
        yield TableCell(number(measured.value), measured.value, small=interval(measured))
