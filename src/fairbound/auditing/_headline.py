"""The question of an audit first: who is flagged wrongly, and who is missed wrongly, against a
reference group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairbound.auditing._audits import Audit, GroupAudit
from fairbound.auditing._text import ends, percent
from fairbound.metrics._intervals import IntervalEstimate
from fairbound.metrics._reference_gaps import ReferenceGap

QUESTIONS = {  # error rate -> what it means, the examples that it is about, what happens to them
    "false_positive_rate": ("Flagged wrongly", "those with label 0", "predicted 1"),
    "false_negative_rate": ("Missed wrongly", "those with label 1", "predicted 0"),
}
MAX_LINES = 30  # groups of an answer


@dataclass(frozen=True)
class Answer:
    """One error rate of the groups that an audit compares."""

    rate: str
    title: str
    among: str
    fate: str
    # the reference group first, then the largest ones
    lines: tuple[tuple[GroupAudit, ReferenceGap | None], ...]
    sentence: str  # about the clearest difference


def answers(audit: Audit) -> list[Answer]:
    """Both error rates, where they are defined."""
    return [
        _answer(audit, rate) for rate in QUESTIONS if _base(audit).rates[rate].value is not None
    ]


def _base(audit: Audit) -> GroupAudit:
    return next(group for group in audit.groups if group.name == audit.reference)


def _answer(audit: Audit, rate: str) -> Answer:
    compared = _compared(audit, rate)
    sentence = _sentence(audit, rate, compared)
    # small intersections may hide what an attribute shows
    if not any(gap.beyond_chance for _, gap in compared):
        for part in audit.parts:
            alone = _compared(part, rate)
            if any(gap.beyond_chance for _, gap in alone):
                sentence += f" By {part.attributes[0]} alone: {_sentence(part, rate, alone)}"
    return Answer(rate, *QUESTIONS[rate], ((_base(audit), None), *compared[:MAX_LINES]), sentence)


def _compared(audit: Audit, rate: str) -> list[tuple[GroupAudit, ReferenceGap]]:
    """The groups that have that rate, largest first, each with its gap to the reference group."""
    compared = [
        (group, group.against_reference[rate])
        for group in audit.groups
        if rate in group.against_reference
    ]
    return sorted(compared, key=lambda line: -line[0].examples)


def _sentence(audit: Audit, rate: str, compared: Sequence[tuple[GroupAudit, ReferenceGap]]) -> str:
    _, among, fate = QUESTIONS[rate]
    base = percent(_base(audit).rates[rate].value)
    alone = f"{base} of {among} in group {audit.reference} are {fate}"
    if not compared:
        return f"{alone}; there is no other group to compare with."
    certain = [line for line in compared if line[1].beyond_chance]
    has_intervals = compared[0][1].difference.low is not None
    if has_intervals and not certain and len(compared) > 1:  # the largest of many is no news
        none = f"None of {len(compared):,} groups differs from {audit.reference} beyond chance"
        return f"{none}. {alone}."
    group, gap = max(certain or compared, key=lambda line: _clearness(line[1].difference))
    points = 100 * (gap.difference.value or 0.0)
    size = (
        f"{abs(points):.1f} points {'more' if points >= 0 else 'less'}"
        f" {ends(gap.difference, '+.1f', 100)}".rstrip()
    )
    clearest = "The clearest difference: " if len(compared) > 1 and has_intervals else ""
    words = (
        f"{clearest}{percent(group.rates[rate].value)} of {among} in group {group.name} are"
        f" {fate}, "
    )
    words += f"against {base} in group {audit.reference}: {size}"
    if gap.ratio.value is not None:
        words += f", {gap.ratio.value:.2f} times the rate {ends(gap.ratio, '.2f')}".rstrip()
    if len(compared) == 1 or not has_intervals:
        return words + ("." if certain or not has_intervals else "; this may be chance.")
    differ = "differ" if len(certain) > 1 else "differs"
    return (
        f"{words}. {len(certain):,} of {len(compared):,} groups {differ} from {audit.reference}"
        " beyond chance."
    )


def _clearness(gap: IntervalEstimate) -> float:
    """A difference in units of its interval's width: the largest difference may be that of the
    smallest group."""
    width = 1.0 if gap.low is None or gap.high is None else gap.high - gap.low
    return abs(gap.value or 0.0) / width
