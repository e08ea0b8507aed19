"""An audit as one HTML page: pictures and tables in a single file that needs no network, now or later.

Everything that comes from the user (names of groups and columns, the source, notes) is escaped. What an audit's page
says beside its numbers is in `page.html`, its own style in `page.css`; the rest is that of all `pages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

from fairbound._utils.files import write_text
from fairbound._utils.pages import SYNTHETIC, Cell, facts, filled, picture, section, table, text, whole
from fairbound.auditing.audits import Audit, GroupAudit
from fairbound.auditing.figures import NOTIONS, PANELS, SHOWN, figure_json, glance, largest, outlined, rates, scores
from fairbound.auditing.text import RATE_WORDS, excludes_zero, explained, interval, number, title, why_undefined
from fairbound.metrics.intervals import UNDEFINED, IntervalEstimate

TABLED = 1_000  # groups in the table: more make a page that browsers cannot hold
COUNTS = {"true_positives": "TP", "false_positives": "FP", "true_negatives": "TN", "false_negatives": "FN"}


def page(audit: Audit) -> str:
    """The whole page as text.

    >>> from fairbound.auditing import audit
    >>> html = page(audit([1, 0, 1, 0], [0, 0, 1, 1], predictions=[1, 0, 0, 0], names=["<A>", "B"], draws=500))
    >>> "&lt;A&gt;" in html, "<A>" in html
    (True, False)
    """
    content = filled(
        "audit.html",
        head=_head(audit),
        body=_body(audit, "all", "h2") + _parts(audit),
        level=_percent(audit.level),
    )
    name = f"Fairness audit: {audit.source}" if audit.source else "Fairness audit"
    return whole(name, content, text("audit.css"))


def write_page(audit: Audit, path: str | Path) -> Path:
    """Write the page; a page that was there is replaced in one step, so that no reader sees half of one."""
    write_text(path, page(audit))
    return Path(path)


def _head(audit: Audit) -> str:
    said = {
        "Source": audit.source or "not named",
        "MiniBatch": f"{audit.rows:,}",
        "Groups": f"{len(audit.groups):,}, by {' x '.join(audit.attributes)}",
        "Reference group": audit.reference,
        "Predictions": "as given" if audit.threshold is None else f"1 where the score is at least {audit.threshold:g}",
        "Intervals": f"level {_percent(audit.level)}",
        "Left out": _rows_of(audit.left_out) + " in no group" if audit.left_out else "no rows",
    }
    banner = SYNTHETIC if audit.source.startswith("synthetic") else ""
    return banner + facts(said) + _notes(audit.notes)


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    listed = "".join(f"<li>{escape(note[:1].upper() + note[1:])}.</li>" for note in notes)
    return f'<div class="notes" role="note"><strong>Before you trust the numbers</strong><ul>{listed}</ul></div>'


def _parts(audit: Audit) -> str:
    """Every attribute alone, folded up."""
    if not audit.parts:
        return ""
    folded = "".join(
        f"<details><summary>{escape(' x '.join(part.attributes))} alone: {len(part.groups):,} groups</summary>"
        f"{_notes(part.notes)}{_body(part, f'part{i}', 'h3')}</details>"
        for i, part in enumerate(audit.parts)
    )
    return section("parts", "h2", "Each attribute alone", folded)


def _body(audit: Audit, prefix: str, heading: str) -> str:
    sections: dict[str, Callable[[Audit], str]] = {"At a glance": _glance, "Rates by group": _rates}
    if audit.bins:
        sections["Scores by group"] = _scores
    sections |= {"Metrics": _metrics, "Groups": _groups}
    return "".join(
        section(f"{prefix}-{name.split()[0].lower()}", heading, name, content(audit))
        for name, content in sections.items()
    )


def _glance(audit: Audit) -> str:
    found = {name: audit.metrics[name] for name in NOTIONS if name in audit.metrics}
    apart = [title(name).lower() for name, measured in found.items() if excludes_zero(measured)]
    alike = [
        title(name).lower() for name, measured in found.items()
        if measured.value is not None and not excludes_zero(measured)
    ]  # fmt: skip
    said = [f"{_key('alert')} <strong>Larger than 0, beyond chance:</strong> {', '.join(apart)}."] if apart else []
    said += [f"{_key()} <strong>Not shown to differ from 0:</strong> {', '.join(alike)}."] if alike else []
    words = "Gaps between groups with their intervals; the same numbers are in the table of metrics"
    return f"<p>{' '.join(said) or 'No gap is defined here.'}</p>" + picture(words, figure_json(glance(audit)))


def _rates(audit: Audit) -> str:
    most = f" The {SHOWN} largest of {len(audit.groups):,} groups are shown." if len(audit.groups) > SHOWN else ""
    listed = "".join(f"<div><dt>{title(rate)}</dt><dd>{RATE_WORDS[rate]}</dd></div>" for rate in PANELS)
    return (
        f"<p>{_key('ink')} the reference group, {escape(audit.reference)}; {_key()} other groups; dashed line: "
        f"everyone. Every panel has its own scale.{most}</p>"
        + picture("Rates of every group with their intervals; the same numbers are in the table of groups",
                  figure_json(rates(audit)))
        + f'<dl class="words">{listed}</dl>'
    )  # fmt: skip


def _scores(audit: Audit) -> str:
    groups, visible = outlined(audit)
    said = "How the scores of each group are spread, in bins of equal width."
    if len(groups) > 1:
        said += " A click on a name in the legend hides or shows that group."
    if len(visible) < len(groups):
        said += f" At first the {len(visible)} largest are shown."
    if len(groups) < len(audit.groups):
        said += f" The legend holds {len(groups)} of {len(audit.groups):,} groups."
    return f"<p>{said}</p>" + picture("Histograms of the scores of every group", figure_json(scores(audit)))


def _metrics(audit: Audit) -> str:
    rows = [
        ((f'<span title="{name}">{title(name)}</span>', name), *_metric_cells(audit, name, found))
        for name, found in audit.metrics.items()
    ]
    names = ["Metric", "Value", "Interval", "What it says", "Whose definition"]
    return table("Metrics", names, rows, kind="metrics")


def _metric_cells(audit: Audit, name: str, found: IntervalEstimate) -> Iterable[Cell]:
    words, source = explained(name)
    why = why_undefined(audit, name) if found.value is None else ""
    yield (f"{number(found.value)}" + (f"<small>{escape(why)}</small>" if why else ""), found.value)
    yield (interval(found), found.low)
    yield _text(words)
    yield _text(source)


def _groups(audit: Audit) -> str:
    shown = largest(audit.groups, TABLED)
    names = ["Group", "MiniBatch", *COUNTS.values(), *map(title, RATE_WORDS)]
    titles = {title(rate): words for rate, words in RATE_WORDS.items()} | {
        short: title(count).lower() for count, short in COUNTS.items()
    }
    has_loss = any(group.loss is not None for group in shown)
    rows = [tuple(_group_cells(group, audit.reference, has_loss)) for group in shown]
    weighted = any(abs(sum(group.counts.values()) - group.rows) > 1e-6 * group.rows for group in audit.groups)
    said = "Counts are sums of the weights of the rows." if weighted else ""
    if len(shown) < len(audit.groups):
        said += f" The {TABLED:,} largest of {len(audit.groups):,} groups are listed."
    listed = table("Groups", names + ["Loss"] * has_loss, rows, kind="groups", titles=titles)
    return (f"<p>{said}</p>" if said else "") + listed


def _group_cells(group: GroupAudit, reference: str, has_loss: bool) -> Iterable[Cell]:
    yield escape(group.name) + ("<small>reference</small>" if group.name == reference else ""), group.name
    yield f"{group.rows:,}", group.rows
    for count in COUNTS:
        held = group.counts[count]
        yield (f"{held:,.0f}" if held == round(held) else f"{held:,.1f}"), held
    for measured in [group.rates[rate] for rate in RATE_WORDS] + ([group.loss or UNDEFINED] if has_loss else []):
        yield f"{number(measured.value)}<small>{interval(measured)}</small>", measured.value


def _text(words: str) -> Cell:
    return escape(words), words


def _key(kind: str = "") -> str:
    """A dot as in the pictures."""
    return f'<span class="key {kind}" aria-hidden="true">&#9679;</span>'


def _rows_of(rows: int) -> str:
    return f"{rows:,} row{'' if rows == 1 else 's'}"


def _percent(level: float) -> str:
    return f"{100 * level:g} %"
