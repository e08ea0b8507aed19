"""An audit as one HTML page: figures and tables in a single file that needs no network, now or later.

What the page says beside its numbers is in `_utils/templates/audit.html`, which escapes everything that comes from the
user: names of groups and columns, the source, notes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairbound._utils.files import write_text
from fairbound._utils.pages import TableCell, figure_json, render
from fairbound.auditing.audits import Audit, GroupAudit
from fairbound.auditing.figures import MAX_GROUPS, OVERVIEW, PANELS, largest, outlined, overview, rates, scores
from fairbound.auditing.text import RATE_WORDS, excludes_zero, explained, interval, number, title, why_undefined
from fairbound.metrics.intervals import UNDEFINED

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
    }
    parts = [_view(part) for part in audit.parts]
    return render("audit.html", source=audit.source, details=details, whole=_view(audit), parts=parts)


def write_page(audit: Audit, path: str | Path) -> Path:
    """Write the page; a page that was there is replaced in one step, so that no reader sees half of one."""
    write_text(path, page(audit))
    return Path(path)


def _view(audit: Audit) -> dict[str, Any]:
    """What the template shows of one partition into groups."""
    gaps = {title(name).lower(): audit.metrics[name] for name in OVERVIEW if name in audit.metrics}
    groups, visible = outlined(audit)
    listed = largest(audit.groups, MAX_LISTED)
    has_loss = any(group.loss is not None for group in listed)
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
        "outlined": len(groups),
        "visible": len(visible),
        "metric_lines": [[*_metric_cells(audit, name)] for name in audit.metrics],
        "weighted": any(
            abs(sum(group.counts.values()) - group.examples) > 1e-6 * group.examples for group in audit.groups
        ),
        "group_headings": ["Group", "Examples", *COUNTS.values(), *titles, *(["Loss"] if has_loss else [])],
        "group_titles": titles | {short: title(count).lower() for count, short in COUNTS.items()},
        "group_lines": [[*_group_cells(group, audit.reference, has_loss)] for group in listed],
    }


def _metric_cells(audit: Audit, name: str) -> Iterator[TableCell]:
    found, (words, source) = audit.metrics[name], explained(name)
    yield TableCell(title(name), name, title=name)
    why = why_undefined(audit, name) if found.value is None else ""
    yield TableCell(number(found.value), found.value, small=why)
    yield TableCell(interval(found), found.low)
    yield TableCell(words, words)
    yield TableCell(source, source)


def _group_cells(group: GroupAudit, reference: str, has_loss: bool) -> Iterator[TableCell]:
    yield TableCell(group.name, group.name, small="reference" if group.name == reference else "")
    yield TableCell(f"{group.examples:,}", group.examples)
    for count in COUNTS:
        held = group.counts[count]
        yield TableCell(f"{held:,.0f}" if held == round(held) else f"{held:,.1f}", held)
    for measured in [group.rates[rate] for rate in RATE_WORDS] + ([group.loss or UNDEFINED] if has_loss else []):
        yield TableCell(number(measured.value), measured.value, small=interval(measured))
