"""The text of an audit: formatted names and numbers, what a rate or metric means, its source, why
one is undefined, and caveats of the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbound.metrics._counts import RATES, Counts
from fairbound.metrics._group_losses import LOSS_GAPS
from fairbound.metrics._intervals import FEWEST, IntervalEstimate
from fairbound.metrics._wasserstein import MOST_GROUPS
from fairbound.metrics.fairness_metrics import METRICS, Metric

if TYPE_CHECKING:
    from fairbound.auditing._audits import Audit

MAX_NAMED = 10  # small groups in a note
# examples: below, the intervals of a group's rates are rough (metrics/_intervals.py)
SMALL_GROUP = 50
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
RATE_TITLES = {
    "positive_rate": "selection rate",
    "base_rate": "share with label 1",
    "inaccuracy": "share of errors",
    "auc": "AUC",
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
_LOSS_SOURCES = {"largest_loss_gap_from_mean": "the paper, eq. (4)"}


def title(name: str) -> str:
    """A rate or a count as a heading.

    >>> title("true_positive_rate"), title("positive_rate")
    ('True positive rate', 'Selection rate')
    """
    return capital(RATE_TITLES.get(name, name.replace("_", " ")))


def capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def explained(name: str) -> tuple[str, str]:
    """What a metric means, and the source of its definition.

    >>> explained("demographic_parity_difference")
    ('difference in selection rate: largest minus smallest', 'Fairlearn')
    """
    if name in METRICS:
        return METRICS[name].words, METRICS[name].source
    if name in LOSS_GAPS:
        return LOSS_GAPS[name], _LOSS_SOURCES.get(name, "cross-entropy of the scores")
    return _SCORE_WORDS.get(name, ("", ""))


def number(value: float | None) -> str:
    """Three decimals, four digits of a large number, two of a small one; "undefined" for None.

    >>> number(0.25), number(0.00031), number(-1e-17), number(1234.5), number(None)
    ('0.250', '0.00031', '0.000', '1234', 'undefined')
    """
    if value is None:
        return "undefined"
    size = abs(value)
    if size < 1e-12:
        return "0.000"
    return f"{value:.4g}" if size >= 100 else f"{value:.3f}" if size >= 0.0095 else f"{value:.2g}"


def interval(measured: IntervalEstimate) -> str:
    """The interval in brackets; nothing where there is none.

    >>> interval(IntervalEstimate(0.2, 0.1, 0.3))
    '[0.100, 0.300]'
    """
    if measured.low is None or measured.high is None:
        return ""
    return f"[{number(measured.low)}, {number(measured.high)}]"


def percent(value: float | None) -> str:
    """
    >>> percent(0.4485), percent(0.0004), percent(None)
    ('44.9\xa0%', '0.04\xa0%', 'undefined')
    """
    if value is None:
        return "undefined"
    return (
        f"{100 * value:{'.1f' if value == 0 or abs(value) >= 0.001 else '.2g'}}\N{NO-BREAK SPACE}%"
    )


def ends(measured: IntervalEstimate, form: str = ".3f", scale: float = 1.0) -> str:
    """
    >>> ends(IntervalEstimate(0.214, 0.182, 0.246), "+.1f", 100)
    '[+18.2, +24.6]'
    """
    if measured.low is None or measured.high is None:
        return ""
    return f"[{scale * measured.low:{form}}, {scale * measured.high:{form}}]"


def excludes_zero(measured: IntervalEstimate) -> bool:
    """Whether the whole interval lies on one side of 0."""
    return (
        measured.low is not None
        and measured.high is not None
        and (measured.low > 0 or measured.high < 0)
    )


def why_undefined(audit: Audit, name: str) -> str:
    """Why the audit could not give that metric, as far as the audit shows."""
    present = [group.name for group in audit.compared]
    metric = METRICS.get(name)
    if metric is not None and metric.groups == "two" and len(present) != 2:
        return f"it is defined for two groups only, and {_so_many(len(present))}"
    if len(present) < 2:
        return f"it compares groups, and {_so_many(len(present))}"
    if (
        name == "wd" or metric is None or metric.groups == "reference"
    ) and audit.reference not in present:
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
    """Why a group may lack a rate.

    >>> (
    ...     why_no_rate("false_positive_rate"),
    ...     why_no_rate("positive_predictive_value"),
    ...     why_no_rate("accuracy"),
    ... )
    ('none with label 0', 'none predicted 1', 'no examples')
    """
    among = RATES[rate][1]
    if len(among) == 4:
        return "no examples"
    labels = {label for label, _ in among}
    return f"none with label {among[0][0]}" if len(labels) == 1 else f"none predicted {among[0][1]}"


def _so_many(groups: int) -> str:
    return "only one is compared here" if groups == 1 else f"{groups} are compared here"


def _why_no_rate(audit: Audit, metric: Metric) -> str:
    for rate in metric.rates:
        words = title(rate).lower()
        having = {
            group.name: group.rates[rate].value
            for group in audit.compared
            if group.rates[rate].value is not None
        }
        if len(having) < 2:
            return f"{'no group' if not having else f'only {next(iter(having))!r}'} has a {words}"
        if metric.groups == "reference" and audit.reference not in having:
            return f"the reference group {audit.reference!r} has no {words}"
        if metric.name == "disparate_impact" and having[audit.reference] == 0:
            return f"the {words} of the reference group {audit.reference!r} is 0"
    return "a group lacks a rate that it compares"


# Caveats ------------------------------------------------------------------------------------------


def small_groups(counts: Counts, min_size: int) -> list[str]:
    """Groups that are absent, not compared, or too small for reliable rates."""
    sizes = dict(zip(counts.names, counts.sizes().tolist(), strict=True))
    empty = [name for name, size in sizes.items() if size == 0]
    small = {name: size for name, size in sizes.items() if 0 < size < min_size}
    few = {name: size for name, size in sizes.items() if max(min_size, 1) <= size < SMALL_GROUP}
    notes = [f"{_listed(empty)} no examples"] if empty else []
    if small:
        rule = f"fewer than {min_size} examples (--min-size)"
        notes.append(
            f"{_listed(small, MAX_NAMED)} {rule}: listed with their rates, but compared with no"
            " other group"
        )
    if few:
        notes.append(
            f"{_listed(few)} fewer than {SMALL_GROUP} examples: the intervals are wide, and rough"
        )
    return notes


def _listed(names: Sequence[str] | Mapping[str, int], most: int = 3) -> str:
    shown = [
        f"{name!r} ({names[name]:,})" if isinstance(names, Mapping) else repr(name)
        for name in names
    ]
    words = ", ".join(shown[:most]) + (
        f" and {len(names) - most:,} more" if len(names) > most else ""
    )
    return (
        f"{'group' if len(names) == 1 else 'groups'} {words} {'has' if len(names) == 1 else 'have'}"
    )


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


def one_sided(labels: Tensor, predictions: Tensor, scores: Tensor | None = None) -> list[str]:
    """Whether all labels, or all predictions, are equal."""
    notes = []
    for values, what in ((labels, "label"), (predictions, "prediction")):
        seen = values.unique().tolist()
        if len(seen) == 1:
            known = (
                scores is not None and what == "prediction" and bool(torch.isfinite(scores).all())
            )
            hint = (
                f" ({_range(scores)}; {threshold_hint(scores)})"
                if known and scores is not None
                else ""
            )
            notes.append(f"every {what} is {seen[0]}{hint}: rates among the others are undefined")
    return notes


def _range(score: Tensor) -> str:
    return f"scores go from {float(score.min()):g} to {float(score.max()):g}"


def threshold_hint(score: Tensor) -> str:
    """A threshold that divides these scores: 0 between negative and positive ones, else the middle
    of their range.

    >>> threshold_hint(torch.arange(1, 11)), threshold_hint(torch.tensor([-2.5, 3.0]))
    ('try --threshold 5', 'try --threshold 0')
    """
    low, high = float(score.min()), float(score.max())
    middle = 0.0 if low < 0 < high else (low + high) / 2
    if bool((score == score.round()).all()) and high - low > 1:
        middle = float(int(middle))
    return f"try --threshold {middle:.3g}"


def no_probabilities(score: Tensor) -> str:
    """Why the scores have no cross-entropy; empty where they have."""
    if not bool(((score >= 0) & (score <= 1)).all()):
        return "scores are not all between 0 and 1, so they are not probabilities and have no loss"
    if bool(((score == 0) | (score == 1)).all()):
        return "scores are all 0 or 1, so they are not probabilities and have no loss"
    return ""


def not_compared(counts: Counts, min_size: int) -> list[str]:
    """Which groups the gaps of losses and the distances of scores skip."""
    few = [
        name
        for name, size in zip(counts.names, counts.sizes().tolist(), strict=True)
        if max(min_size, 1) <= size < FEWEST
    ]
    if not few:
        return []
    return [
        f"{_listed(few)} fewer than {FEWEST} examples: skipped in distances of scores and gaps of"
        " losses"
    ]
