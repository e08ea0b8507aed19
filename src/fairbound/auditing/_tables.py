"""The tables of an audit, of a comparison and of a verdict; and what the terminal and the page show
of them, in order."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbound._utils.files import write_text
from fairbound._utils.sentences import counted, listing
from fairbound.auditing import _findings as findings
from fairbound.metrics._intervals import UNDEFINED, IntervalEstimate
from fairbound.reports._page import Line, PageSection, Words, page, synthetic_banner
from fairbound.reports._table import MARK, WHOLE, ReportTable
from fairbound.reports._words import capital, confidence, estimate, number, signed

if TYPE_CHECKING:
    from fairbound.auditing._audits import Audit
    from fairbound.auditing._comparisons import Comparison
    from fairbound.auditing._decisions import Decision, Gap

MAX_PRINTED = 20  # groups in a text
# groups in a table of the page: more make it megabytes, and the CSV and JSON files have all
MAX_LISTED = 300
MAX_ANSWERED = 30  # groups whose error rates stand on top of the page
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
SCORED = ("auc", "calibration_gap", "loss")
COUNTS = {  # headings of counts, which stand side by side
    "true_positives": "TP",
    "false_positives": "FP",
    "true_negatives": "TN",
    "false_negatives": "FN",
}
AMONG = {0: ("false_positives", "true_negatives"), 1: ("false_negatives", "true_positives")}
GAPS = (
    "demographic_parity_difference",
    "equalized_odds_difference",
    "accuracy_difference",
    "largest_loss_gap",
)
BEYOND_CHANCE = f"{MARK} beyond chance, with all groups counted; an interval is for one group alone"
INDEPENDENT = (
    "Intervals of changes are those of independent samples; for two models on the same examples"
    " they are wider than need be."
)
Frame = dict[tuple[str, str], list[Any]]


def measured_column(
    name: str, measured: Sequence[IntervalEstimate], why: Sequence[str] | str = ""
) -> Frame:
    """A column of estimates with their intervals; where one is undefined, why."""
    reasons = [why] * len(measured) if isinstance(why, str) else why
    column: Frame = {
        (name, "value"): [each.value for each in measured],
        (name, "low"): [each.low for each in measured],
        (name, "high"): [each.high for each in measured],
    }
    notes = [
        reason if each.value is None else "" for each, reason in zip(measured, reasons, strict=True)
    ]
    return column | ({(name, "note"): notes} if any(notes) else {})


# Tables -------------------------------------------------------------------------------------------


def error_rate_table(audit: Audit, rate: str, most: int) -> ReportTable:
    """An error rate of the compared groups, and its difference from and ratio to the reference
    group's."""
    question, label, prediction = findings.QUESTIONS[rate]
    base = findings.base_group(audit)
    compared = findings.compared_groups(audit, rate)[:most]
    groups = [base, *(group for group, _ in compared)]
    gaps = [gap for _, gap in compared]
    among = [sum(group.counts[cell] for cell in AMONG[label]) for group in groups]
    why = "the reference group's is 0"
    frame: Frame = {
        ("group", ""): [group.name for group in groups],
        ("group", "note"): [f"{count:,.10g} with label {label}" for count in among],
        **measured_column("rate, %", [group.rates[rate] for group in groups]),
        **measured_column("difference, points", [UNDEFINED, *(gap.difference for gap in gaps)]),
        ("difference, points", "differs"): [False, *(gap.beyond_chance for gap in gaps)],
        **measured_column("ratio", [UNDEFINED, *(gap.ratio for gap in gaps)], why),
    }
    notes: list[str] = [""] * len(groups)
    frame["difference, points", "note"] = ["reference", *notes[1:]]
    if ("ratio", "note") in frame:
        frame["ratio", "note"][0] = ""
    name = findings.named(rate)
    return ReportTable(
        f"{question}: those with label {label} who are predicted {prediction} ({name}),"
        f" against {audit.reference}",
        frame,
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
    groups = sorted(audit.groups, key=lambda group: -group.examples)[:most]
    gaps = [group.against_reference.get("positive_rate") for group in groups]
    compared = {group.name for group in audit.compared}
    notes = [
        "reference"
        if group.name == audit.reference
        else ""
        if group.name in compared
        else "small: not compared"
        for group in groups
    ]
    ratios = [
        IntervalEstimate(1.0) if note == "reference" else getattr(gap, "ratio", UNDEFINED)
        for note, gap in zip(notes, gaps, strict=True)
    ]
    frame: Frame = {
        ("group", ""): [group.name for group in groups],
        ("group", "note"): notes,
        ("examples", ""): [group.examples for group in groups],
        ("selected", ""): [group.counts["selected"] for group in groups],
        **measured_column("rate, %", [group.rates["positive_rate"] for group in groups]),
        **measured_column("impact ratio", ratios),
    }
    unknown = [f"Unknown: {counted(audit.dropped, 'example')} in no group."] * (audit.dropped > 0)
    return ReportTable(
        f"Selection rates and impact ratios by {' x '.join(audit.attributes)}",
        frame,
        tuple(unknown),
        formats={
            "examples": WHOLE,
            "selected": WHOLE,
            "rate, %": lambda share: f"{100 * share:.1f}",
            "impact ratio": "{:.3f}",
        },
    )


def groups_table(audit: Audit, most: int | None = None) -> ReportTable:
    """Counts, rates and gaps to the reference group of every group, the largest first."""
    groups = sorted(audit.groups, key=lambda group: -group.examples)[:most]
    names = [group.name for group in groups]
    frame: Frame = {
        ("group", ""): names,
        ("group", "note"): ["reference" if name == audit.reference else "" for name in names],
        ("examples", ""): [group.examples for group in groups],
    }
    first = audit.groups[0]
    counts = {count: [group.counts[count] for group in groups] for count in first.counts}
    frame |= {(count, ""): values for count, values in counts.items()}
    for rate in first.rates:
        rates = [group.rates[rate] for group in groups]
        frame |= measured_column(rate, rates, findings.why_no_rate(rate))
    for name in SCORED:
        scored = [getattr(group, name) or UNDEFINED for group in groups]
        if any(measured is not UNDEFINED for measured in scored):
            why = "needs both labels" if name == "auc" else "no examples"
            frame |= measured_column(name, scored, why)
    gaps = {rate for group in groups for rate in group.against_reference}
    for rate in (rate for rate in first.rates if rate in gaps):
        pairs = [group.against_reference.get(rate) for group in groups]
        for part in ("difference", "ratio"):
            measured = [getattr(pair, part, UNDEFINED) for pair in pairs]
            frame |= measured_column(f"{rate}_{part}", measured)
    columns = [name for name, _ in frame]
    is_whole = all(value == round(value) for values in counts.values() for value in values)
    headings = {name: COUNTS.get(name, findings.title(name)) for name in columns}
    hints = {
        headings[name]: words for name, words in findings.RATE_WORDS.items() if name in columns
    }
    hints |= {short: findings.named(name) for name, short in COUNTS.items()}
    return ReportTable(
        "Groups",
        frame,
        formats=dict.fromkeys(columns, number)
        | dict.fromkeys(counts, WHOLE if is_whole else "{:,.1f}")
        | {"examples": WHOLE},
        headings=headings,
        hints=hints,
    )


def metrics_table(audit: Audit) -> ReportTable:
    """Every metric: its value, the groups behind it, what it means and who defines it."""
    names = list(audit.metrics)
    sources = [
        findings.why_undefined(audit, name)
        if audit.metrics[name].value is None
        else findings.explained(name)[1]
        for name in names
    ]
    return ReportTable(
        "Metrics",
        {
            ("metric", ""): names,
            **measured_column("value", list(audit.metrics.values())),
            ("meaning", ""): [capital(findings.explained(name)[0]) for name in names],
            ("defined by", ""): sources,
            ("groups behind it", ""): [_pair(audit, name) for name in names],
        },
        formats={"value": number},
    )


def _pair(audit: Audit, name: str) -> str:
    pair = audit.pairs.get(name)
    if pair is None:
        return ""
    high = f"{number(pair.high_value)} {pair.high} ({pair.high_examples:,})"
    low = f"{number(pair.low_value)} {pair.low} ({pair.low_examples:,})"
    return f"{findings.named(pair.of)} {high} to {low}"


def metric_changes_table(comparison: Comparison) -> ReportTable:
    """Every metric in both audits, and its change."""
    names = list(comparison.metrics)
    first, second = comparison.names
    sides = zip((first, second), (comparison.first, comparison.second), strict=True)
    frame: Frame = {("metric", ""): names}
    for side, audit in sides:
        frame |= measured_column(
            side,
            [audit.metrics[name] for name in names],
            [findings.why_undefined(audit, name) for name in names],
        )
    return ReportTable(
        f"Comparison: {first} (first) and {second} (second)",
        frame | _change_column("change", [comparison.metrics[name] for name in names]),
        formats={first: number, second: number, "change": signed},
    )


def group_changes_table(comparison: Comparison, most: int) -> ReportTable:
    """The changes of the rates of every group that is in both audits."""
    second = {group.name: group for group in comparison.second.groups}
    both = [group for group in comparison.first.groups if group.name in comparison.groups]
    names = [group.name for group in sorted(both, key=lambda group: -group.examples)[:most]]
    sizes = {group.name: group.examples for group in both}
    frame: Frame = {
        ("group", ""): names,
        ("examples, first", ""): [sizes[name] for name in names],
        ("examples, second", ""): [second[name].examples for name in names],
    }
    measured = [comparison.groups[name] for name in names]
    shared = [name for name in measured[0] if all(name in changes for changes in measured)]
    for name in shared:
        frame |= _change_column(name, [changes[name] for changes in measured])
    return ReportTable(
        "Changes by group",
        frame,
        formats=dict.fromkeys(shared, signed)
        | {name: WHOLE for name, _ in frame if name.startswith("examples")},
        headings={name: findings.title(name) for name in shared},
    )


def _change_column(name: str, changes: Sequence[IntervalEstimate]) -> Frame:
    column = measured_column(name, changes, "undefined in one of the two")
    return column | {(name, "differs"): [findings.excludes_zero(each) for each in changes]}


# Verdicts -----------------------------------------------------------------------------------------


def verdict_table(gaps: Sequence[Gap], level: float) -> ReportTable:
    """A row for every gap that can be tested, or both gaps of an unordered pair, nearest to the
    bound first; notes count the others.

    Args:
        gaps: of the verdict.
        level: of confidence.
    """
    pairs = [pair for pair in _pairs(gaps) if not all(gap.reason for gap in pair)]
    pairs.sort(key=lambda pair: _importance(pair[0]), reverse=True)
    shown = [pair[0] for pair in pairs[:MAX_GAPS]]
    signs = [-1.0 if gap.minimum else 1.0 for gap in shown]
    limits = [max(_limit(gap) for gap in pair) for pair in pairs[:MAX_GAPS]]
    ends = [
        sorted((sign * (gap.low or 0), sign * (gap.high or 0)))
        for sign, gap in zip(signs, shown, strict=True)
    ]
    frame: Frame = {
        ("constraint", ""): [gap.name for gap in shown],
        ("value", "value"): [
            sign * (gap.estimate or 0) for sign, gap in zip(signs, shown, strict=True)
        ],
        ("value", "low"): [low for low, _ in ends],
        ("value", "high"): [high for _, high in ends],
        ("limit alone", ""): [
            f"{'>= ' if gap.minimum else ''}{number(sign * limit)}"
            for sign, gap, limit in zip(signs, shown, limits, strict=True)
        ],
        ("bound", ""): [number(sign * gap.bound) for sign, gap in zip(signs, shown, strict=True)],
        ("verdict", ""): [gap.decision for gap in shown],
        ("verdict", "differs"): [gap.decision == "violated" for gap in shown],
    }
    notes = [
        f"{confidence(level)} limits: intervals for all constraints at once, limits for one alone."
    ]
    if any(gap.decision == "undecided" for gap in shown):
        frame["examples to decide", ""] = [_examples_to_decide(gap) for gap in shown]
        notes.append(
            "Examples to decide: of the scarcer group, in all, if the truth is within a standard"
            " error of the value."
        )
    if len(pairs) > MAX_GAPS:
        notes.insert(0, f"and {len(pairs) - MAX_GAPS:,} more, farther from their bounds")
    untested = [gap for gap in gaps if gap.reason]
    if untested:
        count = counted(len(untested), "gap")
        notes.append(f"{count} cannot be tested: {'; '.join(_reasons(untested))}.")
    return ReportTable("", frame, tuple(notes), formats={"value": number})


def _reasons(untested: Sequence[Gap]) -> Iterator[str]:
    """Why gaps cannot be tested: mostly for one reason, which is said once for all their cells."""
    from fairbound.auditing._cell_summaries import MIN_EXAMPLES

    few = [gap.cell for gap in untested if gap.examples < MIN_EXAMPLES]
    if few:
        cells = listing(map(repr, dict.fromkeys(few)), 3)
        yield f"fewer than {MIN_EXAMPLES} examples of {cells}"
    others = dict.fromkeys(gap.reason for gap in untested if gap.examples >= MIN_EXAMPLES)
    yield from list(others)[:3]


def _pairs(gaps: Sequence[Gap]) -> list[list[Gap]]:
    """The gaps, where A - B and B - A are one pair: the one that decides about it comes first."""
    pairs: dict[Any, list[Gap]] = {}
    for gap in gaps:
        size = None if gap.estimate is None else abs(gap.estimate)
        key = " ".join(sorted(gap.name.split(" "))), size, gap.bound, gap.minimum
        pairs.setdefault(key, []).append(gap)
    return [sorted(pair, key=_importance, reverse=True) for pair in pairs.values()]


def conclusion(gap: Gap, decision: Decision, level: float) -> str:
    """What follows from a verdict that depends on this gap.

    Args:
        gap: the one that decides.
        decision: of the verdict.
        level: of confidence.
    """
    sure, population = (
        f"at {confidence(level)} confidence",
        "the population that these examples were drawn from",
    )
    sign = -1.0 if gap.minimum else 1.0
    bound = number(sign * gap.bound)
    asked = f"at least {bound} is required" if gap.minimum else f"{bound} is allowed"
    if decision == "holds":
        assert gap.at_most is not None
        end = f"at {'least' if gap.minimum else 'most'} {number(sign * gap.at_most)}"
        every = f"Holds: {sure} every constraint holds for {population}"
        return f"{every}; nearest to its bound is {gap.name!r}, {end} where {asked}."
    if gap.needed is None:
        return f"Undecided: {gap.reason} (for {gap.name!r}); collect more, or merge groups."
    low, high = sorted((sign * (gap.low or 0), sign * (gap.high or 0)))
    if decision == "violated":
        end = f"at most {number(high)}" if gap.minimum else f"at least {number(low)}"
        return (
            f"Violated: {sure}, for all constraints together, {gap.name!r} is {end} for"
            f" {population}, and {asked}."
        )
    between = f"{gap.name!r} is between {number(low)} and {number(high)}"
    return f"Undecided: {between}, and {asked}. {_more(gap)}"


def _more(gap: Gap) -> str:
    """How many more examples decide if the truth is within a standard error of the estimate."""
    assert gap.needed is not None
    assert gap.needed_between is not None
    counts = (gap.needed_between[0], gap.needed, gap.needed_between[1])
    fewest, likely, most = (_rough(count - gap.examples) for count in counts)
    more = f"more examples of {gap.cell!r}, and of the others in proportion"
    if gap.needed_between[1] < BILLION:
        return f"{fewest} to {most} {more}, would decide."
    at_bound = "if the true value is at the bound, no number of examples decides"
    return f"It takes at least {fewest}, perhaps more than {likely} {more}; {at_bound}."


def nearness(gap: Gap) -> float:
    """How far the estimate lies above its bound, in units of its noise; those that are not known
    come last."""
    if gap.estimate is None or gap.at_most is None:
        return -math.inf
    return (gap.estimate - gap.bound) / max(gap.at_most - gap.estimate, 1e-300)


def _importance(gap: Gap) -> tuple[float, int]:
    return nearness(gap), _DECISIONS.index(gap.decision)


def _limit(gap: Gap) -> float:
    return -math.inf if gap.at_most is None else gap.at_most


def _rough(count: float) -> str:
    """Rounded up to two digits, as it is an estimate.

    >>> _rough(12_345), _rough(87), _rough(math.inf)
    ('13,000', '87', 'a billion')
    """
    if count >= BILLION:
        return "a billion"
    unit: int = 10 ** max(0, len(str(int(count))) - 2)
    return f"{math.ceil(count / unit) * unit:,}"


def _examples_to_decide(gap: Gap) -> str:
    if gap.decision != "undecided" or gap.needed_between is None:
        return ""
    fewest, most = gap.needed_between
    return f"{_rough(fewest)}-{_rough(most)}" if most < BILLION else f"{_rough(fewest)}+"


# The terminal -------------------------------------------------------------------------------------


def report(audit: Audit, most: int = MAX_PRINTED) -> Iterator[Any]:
    """What a terminal shows of an audit: error rates, groups, metrics and notes.

    Args:
        audit: what is shown.
        most: groups in a table, the largest.
    """
    yield Line(findings.summary(audit), lead=f"{audit.source}:" if audit.source else "")
    asked = findings.questions(audit)
    for rate in asked:
        yield error_rate_table(audit, rate, most)
        yield findings.finding(audit, rate)
    if not audit.labeled:
        yield from (selection_table(part, most) for part in (audit, *audit.parts))
    elif not asked:
        yield "No error rate is defined here: see the notes."
    groups = groups_table(audit, most)
    short = {name: heading for name, heading in _SHORT.items() if name in groups.headings}
    if audit.labeled:
        yield groups.only(
            short,
            ("positive_rate",),
            headings=short,
            formats=dict.fromkeys(short, "{:.2f}") | {"examples": WHOLE},
        )
    if len(audit.groups) > most:
        yield f"... and {counted(len(audit.groups) - most, 'smaller group')}"
    metrics = metrics_table(audit)
    yield metrics.only(("metric", "value", "defined by"), ("value",))
    # a ratio has the groups of its difference, or nearly so; all are on the page
    pairs = [f"{name}: {_pair(audit, name)}" for name in audit.pairs if not name.endswith("_ratio")]
    yield from ["Groups behind the differences (examples)", *pairs] if pairs else []
    has_intervals = any(measured.low is not None for measured in audit.metrics.values())
    ends = f"{confidence(audit.level)} intervals, conservative for gaps"
    yield (
        f"Reference group: {audit.reference};"
        f" {ends if has_intervals else 'values only, without intervals'}."
    )
    if any(gap.beyond_chance for group in audit.groups for gap in group.against_reference.values()):
        yield BEYOND_CHANCE
    for part in audit.parts if audit.labeled else ():
        gaps = ", ".join(f"{name} {_estimate(part, name)}" for name in GAPS[:2])
        yield f"By {part.attributes[0]} alone ({counted(len(part.groups), 'group')}): {gaps}"
    yield from (Line(note, lead="Note:") for note in audit.notes)


def _estimate(audit: Audit, name: str) -> str:
    return estimate(*audit.metrics[name]) if name in audit.metrics else "undefined"


def report_comparison(comparison: Comparison) -> Iterator[Any]:
    """What a terminal shows of a comparison besides the first audit."""
    sides = comparison.names
    yield metric_changes_table(comparison).only(
        ("metric", *sides, "change"),
        ("change",),
        headings=dict(zip(sides, ("first", "second"), strict=True)),
    )
    missing = (comparison.only_first, comparison.only_second)
    for side, groups in zip(sides, missing, strict=True):
        if groups:
            yield f"Only in {side}: {listing(groups)}."
    yield INDEPENDENT


# The page -----------------------------------------------------------------------------------------


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
    rule = (
        "as given"
        if audit.threshold is None
        else f"1 where the score is at least {audit.threshold:g}"
    )
    examples = counted(audit.examples, "example")
    facts = {
        "File": audit.source,
        "Label": audit.label,
        made.capitalize(): audit.made,
        "Predictions": rule,
        "Examples": (
            examples
            if audit.examples >= audit.rows
            else f"{examples} of {counted(audit.rows, 'row')}"
        ),
        "Condition": audit.where,
        "Missing values": f"{counted(audit.missing, 'example')} dropped" if audit.missing else "",
        "In no group": counted(audit.dropped, "example") if audit.dropped else "",
        "Groups": f"{len(audit.groups):,}, by {' x '.join(audit.attributes)}",
        "Reference group": audit.reference,
        "Intervals": confidence(audit.level),
    }
    about = PageSection(
        title="About this audit", body=[_facts(facts, command), *_notes(audit.notes)]
    )
    parts = [
        PageSection(
            title=f"{part.attributes[0]} alone: {counted(len(part.groups), 'group')}",
            body=[*_notes(part.notes), _question(part), *_sections(part)],
            is_folded=True,
        )
        for part in audit.parts
    ]
    threshold = "" if audit.threshold is None else f", threshold {audit.threshold:g}"
    line = {
        audit.source: heading,
        examples: examples,
        f"label {audit.label}": audit.label,
        f"{made} {audit.made}{threshold}": audit.made,
    }
    return page(
        heading or f"Fairness audit{': ' if audit.source else ''}{audit.source}",
        [
            *_warning(audit),
            _question(audit),
            about,
            *_sections(audit),
            *([PageSection(title="Each attribute alone", body=parts)] if parts else []),
            _reading(audit),
        ],
        below=" · ".join(words for words, known in line.items() if known),
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
    from fairbound.auditing._figures import MAX_GROUPS, compared_rates

    first, second = comparison.first, comparison.second
    names, both = comparison.names, len(comparison.groups)
    facts = {
        "First": f"{names[0]}: {counted(first.examples, 'example')}",
        "Second": f"{names[1]}: {counted(second.examples, 'example')}",
        "Label": first.label,
        "Condition": first.where,
        "Groups in both": f"{both:,}, by {' x '.join(first.attributes)}",
        "Intervals": confidence(first.level),
    }
    gaps = {name: comparison.metrics[name] for name in GAPS if name in comparison.metrics}
    smaller = [findings.explained(name)[0] for name, gap in gaps.items() if (gap.high or 0) < 0]
    larger = [findings.explained(name)[0] for name, gap in gaps.items() if (gap.low or 0) > 0]
    changed: list[Any] = [
        Line(f"{', '.join(words)}.", lead=f"{size} in the second, beyond chance:")
        for size, words in (("Smaller", smaller), ("Larger", larger))
        if words
    ]
    missing = [
        f"Only in {side}: {listing(groups)}."
        for side, groups in zip(names, (comparison.only_first, comparison.only_second), strict=True)
        if groups
    ]
    sides = f"{names[0]} stands above, in gray; {names[1]} below, in color."
    body: list[Any] = [
        *(_warning(first) or _warning(second)),
        *opening,
        _facts(facts, command),
        *_notes(comparison.notes),
        PageSection(
            title="What changes",
            body=[
                *(changed or ["No gap is shown to change."]),
                INDEPENDENT,
                metric_changes_table(comparison),
            ],
        ),
        PageSection(
            title="Rates by group",
            body=[
                f"{sides} Every panel has its own scale.{_of_all(MAX_GROUPS, both)}",
                *missing,
                compared_rates(comparison),
                group_changes_table(comparison, MAX_LISTED),
            ],
        ),
    ]
    for name, audit in zip(names, (first, second), strict=True):
        parts = [*_notes(audit.notes), _question(audit), *_sections(audit)]
        folded = PageSection(title=f"The audit of {name}", body=parts, is_folded=True)
        body.append(PageSection(title=name, body=[folded]))
    return page(
        heading or f"Comparison of two audits: {', '.join(names)}", [*body, _reading(first)]
    )


def write_page(
    shown: Audit | Comparison, path: str | Path, *, heading: str = "", command: str = ""
) -> Path:
    """Write the page; a page that was there is replaced in one step, so that no reader sees half of
    one."""
    make: Any = comparison_page if hasattr(shown, "second") else audit_page
    write_text(path, make(shown, heading=heading, command=command))
    return Path(path)


def _facts(facts: Mapping[str, str], command: str) -> dict[str, str]:
    made = f"{datetime.date.today().isoformat()}, fairbound {version('fairbound')}"
    everything = {**facts, "Made": made, "Command": command}
    return {name: words for name, words in everything.items() if words}


def _warning(audit: Audit) -> list[Line]:
    return [synthetic_banner()] if audit.source.startswith("synthetic") else []


def _notes(notes: Sequence[str]) -> list[Any]:
    return [
        PageSection(title="Notes", body=[[f"{capital(note)}." for note in notes]], kind="notes")
    ] * bool(notes)


def _reading(audit: Audit) -> PageSection:
    words = Words("reading_audit.html", {"level": confidence(audit.level)})
    return PageSection(title="How to read this", body=[words])


def _of_all(shown: int, groups: int) -> str:
    return f" The {shown:,} largest of {groups:,} groups are shown." if groups > shown else ""


def _question(audit: Audit) -> PageSection:
    """Error rates of the groups against the reference group; without labels, selection rates."""
    if not audit.labeled:
        table = selection_table(audit, MAX_LISTED)
        return PageSection(title="Who is selected?", body=[table])
    asked = findings.questions(audit)
    answers: list[Any] = [
        Line(findings.finding(audit, rate), lead=f"{findings.QUESTIONS[rate][0]}.")
        for rate in asked
    ]
    tables = [error_rate_table(audit, rate, MAX_ANSWERED) for rate in asked]
    small = sorted(
        (group for group in audit.groups if group not in audit.compared and group.examples),
        key=lambda group: -group.examples,
    )
    few = listing([f"{group.name} ({group.examples:,})" for group in small], 20)
    skipped = f" Not compared, with fewer than {audit.min_size} examples: {few}." if small else ""
    return PageSection(
        title="Who is flagged wrongly, and who is missed wrongly?",
        body=[
            *(answers or ["No error rate is defined here: see the notes."]),
            *(PageSection(title=table.title, body=[table]) for table in tables),
            Line(
                f"Against {audit.reference}, with {confidence(audit.level)} intervals."
                f" {BEYOND_CHANCE}.{skipped}",
                "soft",
            ),
        ],
    )


def _sections(audit: Audit) -> Iterator[PageSection]:
    """Figures and tables of one partition into groups."""
    from fairbound.auditing import _figures as figures

    groups = len(audit.groups)
    yield PageSection(
        title="Rates by group",
        body=[
            f"Black: the reference group, {audit.reference}; dashed line: all groups. Every panel"
            f" has its own scale.{_of_all(figures.MAX_GROUPS, groups)}",
            figures.rates(audit),
            {findings.title(rate): findings.RATE_WORDS[rate] for rate in figures.panels_of(audit)},
        ],
    )
    if audit.bins:
        outlined = _of_all(len(figures.scored_groups(audit)), groups)
        yield PageSection(
            title="Scores by group",
            body=[
                f"How the scores of each group are spread, in bins of equal width.{outlined}",
                figures.scores(audit),
            ],
        )
        yield PageSection(
            title="ROC curves by group",
            body=[
                "For every threshold, the share of the examples with label 1 that is predicted 1"
                " against that of the examples with label 0. AUC, the area below, is the"
                " probability that an example with label 1 has a higher score than one with label"
                " 0.",
                figures.roc(audit),
            ],
        )
        yield PageSection(
            title="Calibration by group",
            body=[
                "Of the examples with a score, the share whose label is 1, with its interval."
                + (
                    " Calibrated scores lie on the dashed line."
                    if audit.probabilities
                    else " The same score should mean the same in every group."
                ),
                figures.calibration(audit),
            ],
        )
    yield PageSection(
        title="Metrics",
        body=["Each published definition has its own row.", metrics_table(audit)],
    )
    weights = "Counts are sums of the weights of the examples. " if audit.weighted else ""
    yield PageSection(
        title="Groups",
        body=[
            *filter(None, [f"{weights}{_of_all(MAX_LISTED, groups)}".strip()]),
            groups_table(audit, MAX_LISTED),
        ],
    )
