"""What an audit says in sentences: what a rate or a metric means, why one is undefined, who is
flagged or missed wrongly, and caveats of the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbound._utils.sentences import counted, listing
from fairbound.metrics._counts import RATES, Counts
from fairbound.metrics._group_losses import LOSS_GAPS
from fairbound.metrics._intervals import FEWEST, IntervalEstimate
from fairbound.metrics._wasserstein import MOST_GROUPS
from fairbound.metrics.fairness_metrics import METRICS, Metric
from fairbound.reports._words import capital, interval, percent

if TYPE_CHECKING:
    from fairbound.auditing._audits import Audit, GroupAudit
    from fairbound.auditing._score_audits import AuditedExamples
    from fairbound.metrics._reference_gaps import ReferenceGap

    Compared = Sequence[tuple[GroupAudit, ReferenceGap]]

MAX_NAMED = 10  # small groups in a note
# examples: below, the intervals of a group's rates are rough (metrics/_intervals.py)
SMALL_GROUP = 50
# error rate -> what it means, the label of the examples that it is about, their prediction
QUESTIONS = {
    "false_positive_rate": ("Flagged wrongly", 0, 1),
    "false_negative_rate": ("Missed wrongly", 1, 0),
}
RATE_WORDS = {
    "base_rate": "share of the examples whose label is 1",
    "positive_rate": "share of the examples that are predicted 1",
    "accuracy": "share of the examples that are predicted right",
    "inaccuracy": "share of the examples that are predicted wrong",
    "true_positive_rate": "of the examples with label 1, the share that is predicted 1",
    "false_negative_rate": "of the examples with label 1, the share that is predicted 0",
    "false_positive_rate": "of the examples with label 0, the share that is predicted 1",
    "true_negative_rate": "of the examples with label 0, the share that is predicted 0",
    "positive_predictive_value": "of the examples predicted 1, the share whose label is 1",
    "negative_predictive_value": "of the examples predicted 0, the share whose label is 0",
    "false_omission_rate": "of the examples predicted 0, the share whose label is 1",
}
TITLES = {
    "positive_rate": "selection rate",
    "base_rate": "share with label 1",
    "inaccuracy": "share of errors",
    "auc": "AUC",
    "calibration_gap": "mean score minus share with label 1",
}
_SCORE_WORDS = {  # name -> words, source (metrics/_wasserstein.py, metrics/_roc.py)
    "w1": (
        "distance between score distributions: area between the two that differ most",
        "Wasserstein-1 distance",
    ),
    "wd": (
        "squared distance between score histograms: the reference group's and the farthest",
        "the paper",
    ),
    "auc_difference": ("difference in area under the ROC curve: largest minus smallest", "DeLong"),
    "calibration_difference": (
        "difference in mean of score minus label: largest minus smallest",
        "calibration",
    ),
}


def title(name: str) -> str:
    """A rate or a count as a heading.

    >>> title("true_positive_rate"), title("positive_rate")
    ('True positive rate', 'Selection rate')
    """
    return capital(named(name))


def named(name: str) -> str:
    """A rate or a count in a sentence."""
    return TITLES.get(name, name.replace("_", " "))


def explained(name: str) -> tuple[str, str]:
    """What a metric means, and the source of its definition.

    >>> explained("demographic_parity_difference")
    ('difference in selection rate: largest minus smallest', 'Fairlearn')
    """
    if name in METRICS:
        return METRICS[name].words, METRICS[name].source
    return (LOSS_GAPS | _SCORE_WORDS).get(name, ("", ""))


def why_undefined(audit: Audit, name: str) -> str:
    """Why the audit could not give that metric, as far as the audit shows."""
    present = [group.name for group in audit.compared]
    metric = METRICS.get(name)
    if metric is not None and metric.groups == "two" and len(present) != 2:
        return f"it is defined for two groups only, and {_so_many(len(present))}"
    if len(present) < 2:
        return f"it compares groups, and {_so_many(len(present))}"
    reads_reference = name == "wd" or metric is None or metric.groups == "reference"
    if reads_reference and audit.reference not in present:
        return f"the reference group {audit.reference!r} has no examples"
    if metric is not None:
        return _why_no_rate(audit, metric)
    many = [group for group in audit.compared if group.examples >= FEWEST]
    if len(many) < 2:
        return f"it needs two groups of {FEWEST} examples or more"
    if name in ("w1", "wd") and len(many) > MOST_GROUPS:
        return f"more than {MOST_GROUPS} groups"
    if name == "wd":
        return "the reference group is too small, or no other one has a score in its range"
    return "it needs two groups with 5 examples of each label whose scores overlap"


def why_no_rate(rate: str) -> str:
    """Why a group may lack a rate, or what is measured of its scores.

    >>> why_no_rate("false_positive_rate"), why_no_rate("accuracy")
    ('none with label 0', 'no examples')
    """
    if rate not in RATES:
        return "needs both labels"
    among = RATES[rate][1]
    if len(among) == 4:
        return "no examples"
    labels = {label for label, _ in among}
    return f"none with label {among[0][0]}" if len(labels) == 1 else f"none predicted {among[0][1]}"


def _so_many(groups: int) -> str:
    return "only one is compared here" if groups == 1 else f"{groups} are compared here"


def _why_no_rate(audit: Audit, metric: Metric) -> str:
    for rate in metric.rates:
        words = named(rate)
        values = {group.name: group.rates[rate].value for group in audit.compared}
        having = [name for name, value in values.items() if value is not None]
        if len(having) < 2:
            return f"{f'only {having[0]!r}' if having else 'no group'} has a {words}"
        if metric.groups == "reference" and audit.reference not in having:
            return f"the reference group {audit.reference!r} has no {words}"
        if metric.name == "disparate_impact" and values[audit.reference] == 0:
            return f"the {words} of the reference group {audit.reference!r} is 0"
    return "a group lacks a rate that it compares"


# Who is flagged or missed wrongly -----------------------------------------------------------------


def base_group(audit: Audit) -> GroupAudit:
    """The reference group."""
    return next(group for group in audit.groups if group.name == audit.reference)


def questions(audit: Audit) -> list[str]:
    """The error rates that are defined for the reference group."""
    rates = base_group(audit).rates
    return [rate for rate in QUESTIONS if rate in rates and rates[rate].value is not None]


def compared_groups(audit: Audit, rate: str) -> Compared:
    """The groups that have that rate, largest first, each with its gap to the reference group."""
    groups = [group for group in audit.groups if rate in group.against_reference]
    groups.sort(key=lambda group: -group.examples)
    return [(group, group.against_reference[rate]) for group in groups]


def finding(audit: Audit, rate: str) -> str:
    """The clearest difference in an error rate; where there is none, what an attribute alone
    shows: small intersections may hide it."""
    compared = compared_groups(audit, rate)
    sentence = _sentence(audit, rate, compared)
    if not any(gap.beyond_chance for _, gap in compared):
        for part in audit.parts:
            alone = compared_groups(part, rate)
            if any(gap.beyond_chance for _, gap in alone):
                sentence += f" By {part.attributes[0]} alone: {_sentence(part, rate, alone)}"
    return sentence


def points(share: float) -> str:
    """A difference of shares in points of a percent."""
    return f"{100 * share:+.1f}"


def _sentence(audit: Audit, rate: str, compared: Compared) -> str:
    _, label, prediction = QUESTIONS[rate]
    among = f"of those with label {label} in group"
    base = percent(base_group(audit).rates[rate].value)
    alone = f"{base} {among} {audit.reference} are predicted {prediction}"
    if not compared:
        return f"{alone}; there is no other group to compare with."
    certain = [line for line in compared if line[1].beyond_chance]
    has_intervals = compared[0][1].difference.low is not None
    if has_intervals and not certain and len(compared) > 1:  # the largest of many is no news
        none = f"None of {len(compared):,} groups differs from {audit.reference} beyond chance"
        return f"{none}. {alone}."
    group, gap = max(certain or compared, key=lambda line: _clearness(line[1].difference))
    difference = 100 * (gap.difference.value or 0.0)
    words = (
        f"{percent(group.rates[rate].value)} {among} {group.name} are predicted {prediction},"
        f" against {base} in group {audit.reference}: {abs(difference):.1f} points"
        f" {'more' if difference >= 0 else 'less'}"
        f" {interval(gap.difference.low, gap.difference.high, points)}"
    ).rstrip()
    if gap.ratio.value is not None:
        ends = interval(gap.ratio.low, gap.ratio.high, "{:.2f}".format)
        words += f", {gap.ratio.value:.2f} times the rate {ends}".rstrip()
    if len(compared) == 1 or not has_intervals:
        return words + ("." if certain or not has_intervals else "; this may be chance.")
    differ = "differ" if len(certain) > 1 else "differs"
    return (
        f"The clearest difference: {words}. {len(certain):,} of {len(compared):,} groups {differ}"
        f" from {audit.reference} beyond chance."
    )


def _clearness(gap: IntervalEstimate) -> float:
    """A difference in units of its interval's width: the largest difference may be that of the
    smallest group."""
    width = 1.0 if gap.low is None or gap.high is None else gap.high - gap.low
    return abs(gap.value or 0.0) / width


# Caveats ------------------------------------------------------------------------------------------


def small_groups(counts: Counts, min_size: int) -> list[str]:
    """Groups that are absent, not compared, or too small for reliable rates."""
    sizes = dict(zip(counts.names, counts.sizes().tolist(), strict=True))
    empty = [name for name, size in sizes.items() if size == 0]
    small = {name: size for name, size in sizes.items() if 0 < size < min_size}
    few = {name: size for name, size in sizes.items() if max(min_size, 1) <= size < SMALL_GROUP}
    notes = [f"{_have(empty)} no examples"] if empty else []
    if small:
        notes.append(
            f"{_have(small, MAX_NAMED)} fewer than {min_size} examples (`min_size`): listed with"
            " their rates, but compared with no other group"
        )
    if few:
        notes.append(
            f"{_have(few)} fewer than {SMALL_GROUP} examples: the intervals are wide, and rough"
        )
    return notes


def _have(names: Sequence[str] | Mapping[str, int], most: int = 3) -> str:
    shown = [
        f"{name!r} ({names[name]:,})" if isinstance(names, Mapping) else repr(name)
        for name in names
    ]
    nouns, verb = ("group", "has") if len(names) == 1 else ("groups", "have")
    return f"{nouns} {listing(shown, most)} {verb}"


def one_group(counts: Counts) -> list[str]:
    """Whether there is nothing to compare."""
    if len(counts.names) > 1:
        return []
    return [
        f"there is one group only, {counts.names[0]!r}: nothing is compared, and every gap is"
        " undefined"
    ]


def own_group(name: str, what: str) -> str:
    """The caveat of groups that are what is audited."""
    return (
        f"the group column {name!r} is the {what} itself: groups differ in it by definition, not by"
        " the model"
    )


def one_sided(examples: AuditedExamples) -> list[str]:
    """Whether all labels, or all predictions, are equal."""
    scores, hint, notes = examples.scores, "", []
    if scores is not None and bool(torch.isfinite(scores).all()):
        hint = f" ({threshold_hint(scores)})"
    for what, values, more in (
        ("label", examples.labels, ""),
        ("prediction", examples.predictions, hint),
    ):
        if values is not None and len(distinct := values.unique().tolist()) == 1:
            notes.append(
                f"every {what} is {distinct[0]}{more}: rates among the others are undefined"
            )
    return notes


def threshold_hint(score: Tensor) -> str:
    """The range of these scores, and a threshold that divides them: 0 between negative and positive
    ones, else the middle of the range.

    >>> threshold_hint(torch.arange(1, 11)), threshold_hint(torch.tensor([-2.5, 3.0]))
    ('scores from 1 to 10; try `threshold=5`', 'scores from -2.5 to 3; try `threshold=0`')
    """
    low, high = float(score.min()), float(score.max())
    middle = 0.0 if low < 0 < high else (low + high) / 2
    if bool((score == score.round()).all()) and high - low > 1:
        middle = float(int(middle))
    return f"scores from {low:g} to {high:g}; try `threshold={middle:.3g}`"


def no_probabilities(score: Tensor) -> str:
    """Why the scores have no cross-entropy; empty where they have."""
    if not bool(((score >= 0) & (score <= 1)).all()):
        return "scores are not all between 0 and 1, so they are not probabilities and have no loss"
    if bool(((score == 0) | (score == 1)).all()):
        return "scores are all 0 or 1, so they are not probabilities and have no loss"
    return ""


def not_compared(counts: Counts, min_size: int) -> list[str]:
    """Which groups the gaps of losses and the distances of scores skip."""
    sizes = zip(counts.names, counts.sizes().tolist(), strict=True)
    few = [name for name, size in sizes if max(min_size, 1) <= size < FEWEST]
    skipped = f"fewer than {FEWEST} examples: skipped in distances of scores and gaps of losses"
    return [f"{_have(few)} {skipped}"] if few else []


def summary(audit: Audit) -> str:
    """What was audited."""
    made = "predictions" if audit.threshold is None else f"scores, threshold {audit.threshold:g}"
    groups = f"{counted(len(audit.groups), 'group')} by {' x '.join(audit.attributes)}"
    weighted = ", weighted" if audit.weighted else ""
    return f"{counted(audit.examples, 'example')}, {groups}; {made}{weighted}"
