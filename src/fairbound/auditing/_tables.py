"""The tables of an audit, of a comparison and of a verdict; and what the terminal and the page show
of them, in order."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbound._utils.files import write_text
from fairbound._utils.sentences import counted, listing
from fairbound.auditing import _findings as findings
from fairbound.metrics._intervals import IntervalEstimate
from fairbound.metrics._reference_gaps import NOT_COMPARED
from fairbound.reports._page import Line, PageSection, Words, page, synthetic_banner
from fairbound.reports._table import MARK, WHOLE, Measured, ReportTable
from fairbound.reports._words import capital, confidence, estimate, number, signed

if TYPE_CHECKING:
    from fairbound.auditing._audits import Audit
    from fairbound.auditing._comparisons import Comparison
    from fairbound.auditing._decisions import Decision, Gap

MAX_PRINTED = 20  # groups in a text
# groups in a table of the page: more make it megabytes, and the CSV and JSON files have all
MAX_LISTED = 300
MAX_GAPS = 24  # rows of a verdict's table; of more, those nearest to their bounds
BILLION = 1e9  # examples: so many are taken for no limit
_DECISIONS = ("holds", "undecided", "violated")
_SHORT = {  # headings of the columns of the table of groups that a terminal shows
    "group": "group",
    "examples": "examples",
    "base_rate": "y=1",
    "positive_rate": "ŷ=1",
    "true_positive_rate": "TPR",
    "false_positive_rate": "FPR",
    "positive_predictive_value": "PPV",
    "accuracy": "acc",
    "auc": "AUC",
}
COUNTS = {  # headings of counts, which stand side by side
    "true_positives": "TP",
    "false_positives": "FP",
    "true_negatives": "TN",
    "false_negatives": "FN",
}
AMONG = {0: ("false_positives", "true_negatives"), 1: ("false_negatives", "true_positives")}
GAPS = ("demographic_parity_difference", "equalized_odds_difference")  # in a sentence
INDEPENDENT = (
    "Intervals of changes are those of independent samples; for two models on the same examples"
    " they are wider than need be."
)


def measured_cell(measured: IntervalEstimate, why: str = "") -> Measured:
    """An estimate with its interval.

    Args:
        measured: the estimate.
        why: it is undefined, where it is.
    """
    return Measured(*measured, note=why if measured.value is None else "")


# Tables -------------------------------------------------------------------------------------------


def error_rate_table(audit: Audit, rate: str, most: int) -> ReportTable:
    """An error rate of the compared groups, and its difference from and ratio to the reference
    group's."""
    question, label, prediction = findings.QUESTIONS[rate]
    compared = findings.compared_groups(audit, rate)[:most]
    rows = []
    for group, gap in [(findings.base_group(audit), NOT_COMPARED), *compared]:
        among = sum(group.counts[cell] for cell in AMONG[label])
        why = "reference" if gap is NOT_COMPARED else "the reference group's is 0"
        rows.append(
            {
                "group": Measured(group.name, note=f"{among:,.10g} with label {label}"),
                "rate, %": measured_cell(group.rates[rate]),
                "difference, points": measured_cell(gap.difference, why)._replace(
                    differs=gap.beyond_chance
                ),
                "ratio": measured_cell(gap.ratio, why),
            }
        )
    return ReportTable.of_rows(
        f"{question}: those with label {label} who are predicted {prediction}"
        f" ({findings.named(rate)}), against {audit.reference}",
        rows,
        formats={
            "rate, %": lambda share: f"{100 * share:.1f}",
            "difference, points": findings.points,
            "ratio": "{:.2f}",
        },
    )


def selection_table(audit: Audit, most: int | None = None) -> ReportTable:
    """Selection rate and impact ratio of every group, the largest first, for an audit without
    labels.

    Args:
        audit: what is shown.
        most: groups in the table; all if not given.
    """
    compared = {group.name for group in audit.compared}
    rows = []
    for group in sorted(audit.groups, key=lambda group: -group.examples)[:most]:
        gap = group.against_reference.get("positive_rate", NOT_COMPARED)
        is_reference = group.name == audit.reference
        why = "" if group.name in compared else "small: not compared"
        rows.append(
            {
                "group": Measured(group.name, note="reference" if is_reference else why),
                "examples": group.examples,
                "selected": group.counts["selected"],
                "rate, %": measured_cell(group.rates["positive_rate"]),
                "impact ratio": Measured(1.0) if is_reference else measured_cell(gap.ratio, why),
            }
        )
    unknown = (f"Unknown: {counted(audit.dropped, 'example')} in no group.",)
    return ReportTable.of_rows(
        f"Selection rates and impact ratios by {' x '.join(audit.attributes)}",
        rows,
        notes=unknown if audit.dropped else (),
        formats={
            "examples": WHOLE,
            "selected": WHOLE,
            "rate, %": lambda share: f"{100 * share:.1f}",
            "impact ratio": "{:.3f}",
        },
    )


def groups_table(audit: Audit, most: int | None = None) -> ReportTable:
    """Counts, rates and gaps to the reference group of every group, the largest first.

    Args:
        audit: whose groups they are.
        most: groups in the table; by default all.
    """
    groups = sorted(audit.groups, key=lambda group: -group.examples)[:most]
    compared = {rate for group in groups for rate in group.against_reference}
    rows = []
    for group in groups:
        note = "reference" if group.name == audit.reference else ""
        row: dict[str, Any] = {"group": Measured(group.name, note=note), "examples": group.examples}
        row |= group.counts
        for name, measured in group.measured.items():
            row[name] = measured_cell(measured, findings.why_no_rate(name))
        for rate in group.rates:
            if rate in compared:
                gap = group.against_reference.get(rate, NOT_COMPARED)
                row[f"{rate}_difference"] = measured_cell(gap.difference)
                row[f"{rate}_ratio"] = measured_cell(gap.ratio)
        rows.append(row)
    headings = {name: COUNTS.get(name, findings.title(name)) for name in rows[0]}
    words = findings.RATE_WORDS | {name: findings.named(name) for name in COUNTS}
    table = ReportTable.of_rows(
        "Groups",
        rows,
        formats=dict.fromkeys(rows[0], number)
        | dict.fromkeys(COUNTS, "{:,.1f}" if audit.weighted else WHOLE)
        | {"examples": WHOLE},
        headings=headings,
        hints={headings[name]: words[name] for name in rows[0] if name in words},
    )
    short = {name: heading for name, heading in _SHORT.items() if name in headings}
    formats = dict.fromkeys(short, "{:.2f}") | {"examples": WHOLE}
    return table.with_short(short, ("positive_rate",), formats=formats)


def metrics_table(audit: Audit) -> ReportTable:
    """Every metric: its value, what it means and who defines it."""
    rows = []
    for name, measured in audit.metrics.items():
        meaning, source = findings.explained(name)
        row = {
            "metric": name,
            "value": Measured(*measured),
            "defined by": _why_undefined(audit, name) or source,
            "meaning": capital(meaning),
        }
        rows.append(row)
    table = ReportTable.of_rows("Metrics", rows, formats={"value": number})
    shown = {name: name for name in ("metric", "value", "defined by")}
    return table.with_short(shown, shown)


def _why_undefined(audit: Audit, name: str) -> str:
    """Why a metric is undefined, if it is."""
    return findings.why_undefined(audit, name) if audit.metrics[name].value is None else ""


def pairs_table(audit: Audit) -> ReportTable:
    """The groups behind every difference; a ratio has those of its difference, or nearly so."""
    rows = [
        {
            "metric": name,
            "of": findings.named(pair.of),
            "largest": f"{number(pair.high_value)} {pair.high} ({pair.high_examples:,})",
            "smallest": f"{number(pair.low_value)} {pair.low} ({pair.low_examples:,})",
        }
        for name, pair in audit.pairs.items()
        if not name.endswith("_ratio")
    ]
    return ReportTable.of_rows("Groups behind the differences (examples)", rows)


def metric_changes_table(comparison: Comparison) -> ReportTable:
    """Every metric in both audits, and its change."""
    audits = dict(zip(comparison.names, (comparison.first, comparison.second), strict=True))
    rows = []
    for name, measured in comparison.metrics.items():
        both = {
            side: measured_cell(audit.metrics[name], _why_undefined(audit, name))
            for side, audit in audits.items()
        }
        rows.append({"metric": name, **both, "change": _changed(measured)})
    first, second = audits
    table = ReportTable.of_rows(
        f"Comparison: {first} (first) and {second} (second)",
        rows,
        formats={first: number, second: number, "change": signed},
    )
    return table.with_short(
        {"metric": "metric", first: "first", second: "second", "change": "change"}, ("change",)
    )


def group_changes_table(comparison: Comparison) -> ReportTable:
    """The changes of the rates of the groups that are in both audits, the largest first."""
    sizes = {group.name: group.examples for group in comparison.second.groups}
    first = sorted(comparison.first.groups, key=lambda group: -group.examples)
    rows = [
        {"group": group.name, "first": group.examples, "second": sizes[group.name]}
        | {name: _changed(gap) for name, gap in comparison.groups[group.name].items()}
        for group in first
        if group.name in comparison.groups
    ][:MAX_LISTED]
    shared = [name for name in rows[0] if all(name in row for row in rows)]
    examples = {"first": "Examples in the first", "second": "in the second"}
    return ReportTable.of_rows(
        "Changes by group",
        [{name: row[name] for name in shared} for row in rows],
        formats=dict.fromkeys(shared, signed) | dict.fromkeys(examples, WHOLE),
        headings={name: findings.title(name) for name in shared} | examples,
    )


def _changed(measured: IntervalEstimate) -> Measured:
    cell = measured_cell(measured, "undefined in one of the two")
    return cell._replace(differs=measured.excludes_zero)


# Verdicts -----------------------------------------------------------------------------------------


def verdict_table(gaps: Sequence[Gap], level: float) -> ReportTable:
    """A row for every gap that can be tested, or both gaps of an unordered pair, nearest to the
    bound first; notes count the others.

    Args:
        gaps: of the verdict.
        level: of confidence.
    """
    pairs = [pair for pair in _pairs(gaps) if not pair[0].reason]
    pairs.sort(key=lambda pair: nearness(pair[0]), reverse=True)
    rows = [_verdict_row(*pair) for pair in pairs[:MAX_GAPS]]
    notes = [
        f"{confidence(level)} limits: intervals for all constraints at once, limits for one alone."
    ]
    if any(row["examples to decide"] for row in rows):
        notes.append(
            "Examples to decide: of the scarcer group, in all, if the truth is within a standard"
            " error of the value."
        )
    else:
        rows = [{name: row[name] for name in row if name != "examples to decide"} for row in rows]
    if len(pairs) > MAX_GAPS:
        notes.insert(0, f"and {len(pairs) - MAX_GAPS:,} more, farther from their bounds")
    untested = [gap for gap in gaps if gap.reason]
    if untested:
        reasons = "; ".join(_reasons(untested))
        notes.append(f"{counted(len(untested), 'gap')} cannot be tested: {reasons}.")
    return ReportTable.of_rows("", rows, notes=tuple(notes), formats={"value": number})


def _verdict_row(gap: Gap, *mirrored: Gap) -> dict[str, Any]:
    """The gap that decides about its row."""
    shown = _as_meant(replace(gap, at_most=max(each.at_most or 0.0 for each in (gap, *mirrored))))
    fewest, most = gap.needed_between or (0.0, 0.0)
    ends = f"{_rough(fewest)}-{_rough(most)}" if most < BILLION else f"{_rough(fewest)}+"
    return {
        "constraint": gap.name,
        "value": Measured(shown.estimate, shown.low, shown.high),
        "limit alone": f"{'>= ' if gap.minimum else ''}{number(shown.at_most)}",
        "bound": number(shown.bound),
        "verdict": Measured(gap.decision, differs=gap.decision == "violated"),
        "examples to decide": ends if gap.decision == "undecided" else "",
    }


def _reasons(untested: Sequence[Gap]) -> Iterator[str]:
    """Why gaps cannot be tested: mostly for one reason, which is said once for all their cells."""
    from fairbound.auditing._cell_summaries import MIN_EXAMPLES

    few = dict.fromkeys(repr(gap.cell) for gap in untested if gap.examples < MIN_EXAMPLES)
    if few:
        yield f"fewer than {MIN_EXAMPLES} examples of {listing(few, 3)}"
    others = dict.fromkeys(gap.reason for gap in untested if gap.examples >= MIN_EXAMPLES)
    yield from list(others)[:3]


def _pairs(gaps: Sequence[Gap]) -> list[list[Gap]]:
    """The gaps, where A - B and B - A are one pair: the one nearer to its bound comes first."""
    pairs: dict[int, list[Gap]] = {}
    for gap in gaps:
        pairs.setdefault(gap.pair, []).append(gap)
    return [sorted(pair, key=nearness, reverse=True) for pair in pairs.values()]


def conclusion(gap: Gap, decision: Decision, level: float) -> str:
    """What follows from a verdict that depends on this gap.

    Args:
        gap: the one that decides.
        decision: of the verdict.
        level: of confidence.
    """
    if gap.needed is None:
        return f"Undecided: {gap.reason} (for {gap.name!r}); collect more, or merge groups."
    sure, population = (
        f"at {confidence(level)} confidence",
        "the population that these examples were drawn from",
    )
    shown = _as_meant(gap)
    low, high, limit, bound = map(number, (shown.low, shown.high, shown.at_most, shown.bound))
    asked = f"at least {bound} is required" if gap.minimum else f"{bound} is allowed"
    if decision == "holds":
        end = f"at {'least' if gap.minimum else 'most'} {limit}"
        every = f"Holds: {sure} every constraint holds for {population}"
        return f"{every}; nearest to its bound is {gap.name!r}, {end} where {asked}."
    if decision == "violated":
        end = f"at most {high}" if gap.minimum else f"at least {low}"
        return (
            f"Violated: {sure}, for all constraints together, {gap.name!r} is {end} for"
            f" {population}, and {asked}."
        )
    return f"Undecided: {gap.name!r} is between {low} and {high}, and {asked}. {_more(gap)}"


def _as_meant(gap: Gap) -> Gap:
    """A gap that can be tested as it is read: a minimum is stored with its sign turned."""
    if not gap.minimum:
        return gap
    value, limit = -(gap.estimate or 0.0), -(gap.at_most or 0.0)
    low, high = -(gap.high or 0.0), -(gap.low or 0.0)
    return replace(gap, estimate=value, bound=-gap.bound, low=low, high=high, at_most=limit)


def _more(gap: Gap) -> str:
    """How many more examples decide if the truth is within a standard error of the estimate."""
    least, largest = gap.needed_between or (0.0, 0.0)
    counts = (least, gap.needed or 0.0, largest)
    fewest, likely, most = (_rough(count - gap.examples) for count in counts)
    more = f"more examples of {gap.cell!r}, and of the others in proportion"
    if largest < BILLION:
        return f"{fewest} to {most} {more}, would decide."
    at_bound = "if the true value is at the bound, no number of examples decides"
    return f"It takes at least {fewest}, perhaps more than {likely} {more}; {at_bound}."


def nearness(gap: Gap) -> float:
    """How far the estimate lies above its bound, in units of its noise; those that are not known
    come last."""
    if gap.estimate is None or gap.at_most is None:
        return -math.inf
    return (gap.estimate - gap.bound) / max(gap.at_most - gap.estimate, 1e-300)


def _rough(count: float) -> str:
    """Rounded up to two digits, as it is an estimate.

    >>> _rough(12_345), _rough(87), _rough(math.inf)
    ('13,000', '87', 'a billion')
    """
    if count >= BILLION:
        return "a billion"
    unit: int = 10 ** max(0, len(str(int(count))) - 2)
    return f"{math.ceil(count / unit) * unit:,}"


# The terminal and the page ------------------------------------------------------------------------


def report(audit: Audit, most: int = MAX_PRINTED) -> list[Any]:
    """What a terminal shows of an audit.

    Args:
        audit: what is shown.
        most: groups in a table, the largest.
    """
    lead = f"{audit.source}:" if audit.source else ""
    return [
        Line(findings.summary(audit), lead=lead),
        _question(audit, most),
        *_numbers(audit, most),
        *_alone(audit),
        *(Line(note, lead="Note:") for note in audit.notes),
    ]


def report_comparison(comparison: Comparison) -> list[Any]:
    """What a terminal shows of a comparison besides the first audit."""
    return [metric_changes_table(comparison), *_only_in_one(comparison), INDEPENDENT]


def _question(audit: Audit, most: int) -> PageSection:
    """Error rates of the groups against the reference group; without labels, selection rates."""
    asked = findings.questions(audit)
    title = "Who is flagged wrongly, and who is missed wrongly?"
    tables = [error_rate_table(audit, rate, most) for rate in asked]
    if not audit.labeled:
        title, tables = "Who is selected?", [selection_table(audit, most)]
    body: list[Any] = [] if tables else ["No error rate is defined here: see the notes."]
    for rate in asked:
        body.append(Line(findings.finding(audit, rate), lead=f"{findings.QUESTIONS[rate][0]}."))
    body += [PageSection(title=table.title, body=[table]) for table in tables]
    ends = f"{confidence(audit.level)} intervals, conservative for gaps"
    if all(measured.low is None for measured in audit.metrics.values()):
        ends = "values only, without intervals"
    explained = (
        f"Reference group: {audit.reference}; {ends}."
        f" {MARK} beyond chance, with all groups counted; an interval is for one group alone."
    )
    small = [group for group in audit.groups if group not in audit.compared and group.examples]
    if small:
        few = listing([f"{group.name} ({group.examples:,})" for group in small], 20)
        explained += f" Not compared, with fewer than {audit.min_size} examples: {few}."
    return PageSection(title=title, body=[*body, Line(explained, "soft")])


def _numbers(audit: Audit, most: int) -> list[PageSection]:
    """The tables of metrics and groups."""
    weights = ["Counts are sums of the weights of the examples."] if audit.weighted else []
    hidden = len(audit.groups) - most
    more = [f"... and {counted(hidden, 'smaller group')}"] if hidden > 0 else []
    groups = PageSection(title="Groups", body=[*weights, groups_table(audit, most), *more])
    tables = [metrics_table(audit), *([pairs_table(audit)] if audit.pairs else [])]
    metrics = PageSection(title="Metrics", body=tables)
    return [groups, metrics] if audit.labeled else [metrics]


def _alone(audit: Audit) -> list[Any]:
    """The main gaps, or selection rates, by every attribute alone."""
    if not audit.labeled:
        return [selection_table(part, MAX_PRINTED) for part in audit.parts]
    return [
        f"By {part.attributes[0]} alone ({counted(len(part.groups), 'group')}): "
        + ", ".join(
            f"{name} {estimate(*part.metrics[name])}" for name in GAPS if name in part.metrics
        )
        for part in audit.parts
    ]


def _only_in_one(comparison: Comparison) -> list[str]:
    missing = zip(comparison.names, (comparison.only_first, comparison.only_second), strict=True)
    return [f"Only in {name}: {listing(groups)}." for name, groups in missing if groups]


def _everything(audit: Audit) -> list[Any]:
    """What a page shows of one partition into groups."""
    from fairbound.auditing import _figures as figures

    return [
        _question(audit, figures.MAX_DRAWN_GROUPS),
        *figures.sections(audit),
        *_numbers(audit, MAX_LISTED),
    ]


def audit_page(audit: Audit, *, heading: str = "", command: str = "") -> str:
    """The page of an audit as text.

    Args:
        audit: what is shown.
        heading: of the page; by default the file's name.
        command: the one that made the page.

    >>> from fairbound.auditing import audit
    >>> html = audit_page(
    ...     audit(
    ...         [1, 0, 1, 0], [0, 0, 1, 1], predictions=[1, 0, 0, 0], names=["<A>", "B"], draws=500
    ...     )
    ... )
    >>> "&lt;A&gt;" in html, "<A>" in html
    (True, False)
    """
    made = "prediction" if audit.threshold is None else "score"
    threshold = "" if audit.threshold is None else f", threshold {audit.threshold:g}"
    facts = {
        "File": audit.source,
        "Label": audit.label,
        made.capitalize(): f"{audit.made}{threshold}",
        "Rows": f"{audit.rows:,}" if audit.rows > audit.examples else "",
        "Condition": audit.where,
        "Missing values": f"{counted(audit.missing, 'example')} dropped" if audit.missing else "",
        "In no group": counted(audit.dropped, "example") if audit.dropped else "",
    }
    question, *others = _everything(audit)
    parts = [
        PageSection(
            title=f"{part.attributes[0]} alone: {counted(len(part.groups), 'group')}",
            body=[*_notes(part.notes), *_everything(part)],
            is_folded=True,
        )
        for part in audit.parts
    ]
    alone = PageSection(title="Each attribute alone", body=[*_alone(audit), *parts])
    about = _about(facts, command, audit, audit.notes)
    return _page(
        heading or f"Fairness audit{': ' if audit.source else ''}{audit.source}",
        [question, about, *others, *([alone] if parts else [])],
        [audit],
        below=findings.summary(audit),
    )


def comparison_page(
    comparison: Comparison,
    *,
    heading: str = "",
    command: str = "",
    opening: Sequence[PageSection] = (),
) -> str:
    """The page of two audits as text.

    Args:
        comparison: what is shown.
        heading: of the page; by default the names of both.
        command: the one that made the page.
        opening: sections before what is known about the audits.
    """
    from fairbound.auditing import _figures as figures

    first, second = comparison.first, comparison.second
    audits = dict(zip(comparison.names, (first, second), strict=True))
    facts = {name: findings.summary(audit) for name, audit in audits.items()}
    facts |= {"Label": first.label, "Condition": first.where}
    folded = [
        PageSection(title=f"The audit of {name}", body=_everything(audit), is_folded=True)
        for name, audit in audits.items()
    ]
    return _page(
        heading or f"Comparison of two audits: {', '.join(comparison.names)}",
        [
            *opening,
            _about(facts, command, first, comparison.notes),
            PageSection(title="What changes", body=[INDEPENDENT, metric_changes_table(comparison)]),
            PageSection(
                title="Rates by group",
                body=[
                    *_only_in_one(comparison),
                    figures.compared_rates(comparison),
                    group_changes_table(comparison),
                ],
            ),
            PageSection(title="Both audits", body=folded),
        ],
        [first, second],
    )


def _page(heading: str, body: Sequence[Any], audits: Sequence[Audit], below: str = "") -> str:
    """The page between a warning of synthetic data and how to read it."""
    is_synthetic = any(audit.source.startswith("synthetic") for audit in audits)
    words = Words("reading_audit.html", {"level": confidence(audits[0].level)})
    reading = PageSection(title="How to read this", body=[words])
    banner = [synthetic_banner()] if is_synthetic else []
    return page(heading, [*banner, *body, reading], below=below)


def write_page(
    shown: Audit | Comparison, path: str | Path, *, heading: str = "", command: str = ""
) -> Path:
    """Write the page; a page that was there is replaced in one step, so that no reader sees half of
    one."""
    make: Any = comparison_page if hasattr(shown, "second") else audit_page
    write_text(path, make(shown, heading=heading, command=command))
    return Path(path)


def _about(
    facts: Mapping[str, str], command: str, audit: Audit, notes: Sequence[str]
) -> PageSection:
    known = {
        **facts,
        "Groups": f"{len(audit.groups):,}, by {' x '.join(audit.attributes)}",
        "Reference group": audit.reference,
        "Intervals": confidence(audit.level),
        "Made": f"{datetime.date.today()}, fairbound {version('fairbound')}",
        "Command": command,
    }
    shown = {name: words for name, words in known.items() if words}
    return PageSection(title="About this audit", body=[shown, *_notes(notes)])


def _notes(notes: Sequence[str]) -> list[PageSection]:
    sentences = [f"{capital(note)}." for note in notes]
    return [PageSection(title="Notes", body=[sentences], kind="notes")] if notes else []
