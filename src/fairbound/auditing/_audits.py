"""An audit of predictions: per-group rates and every fairness metric, each with its confidence
interval.

It needs labels, predictions (or scores and a threshold) and groups, from any model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairbound._utils.sentences import counted, did_you_mean
from fairbound.auditing._findings import (
    one_group,
    one_sided,
    small_groups,
    threshold_hint,
)
from fairbound.auditing._score_audits import ScoreAudit, audit_scores
from fairbound.columns._attributes import Coded
from fairbound.metrics._counts import (
    Counts,
    as_binary,
    as_numbers,
    as_vector,
    as_weights,
    group_names,
    same_length,
)
from fairbound.metrics._intervals import DRAWS, MANY_GROUPS, IntervalEstimate
from fairbound.metrics._reference_gaps import ReferenceGap, reference_gaps
from fairbound.metrics._roc import CalibrationBin
from fairbound.metrics.fairness_metrics import (
    GroupPair,
    group_pairs,
    group_rates,
    largest_group,
    metric_intervals,
    values,
)


@dataclass(frozen=True)
class GroupAudit:
    """Counts, rates and loss of one group."""

    name: str
    examples: int
    # true_positives, ...: sums of weights, i.e. examples where there are none
    counts: Mapping[str, float]
    rates: Mapping[str, IntervalEstimate]
    # by error rate; of compared groups
    against_reference: Mapping[str, ReferenceGap] = field(default_factory=dict)
    loss: IntervalEstimate | None = None  # mean cross-entropy of the scores
    auc: IntervalEstimate | None = None
    # mean score minus base rate, where scores are probabilities
    calibration_gap: IntervalEstimate | None = None
    histogram: tuple[float, ...] = ()  # share of the group's weight in each bin of Audit.bins
    # (false, true positive rate) for thresholds from high to low
    roc: tuple[tuple[float, float], ...] = ()
    # mean score and share with label 1, from low to high scores
    calibration: tuple[CalibrationBin, ...] = ()


@dataclass(frozen=True)
class Audit:
    """The audit of one partition into groups; `print` shows a table. `audit` has an example."""

    attributes: tuple[str, ...]  # the columns that define the groups
    examples: int
    reference: str  # the group that signed differences compare the others to
    level: float  # of the intervals
    metrics: Mapping[str, IntervalEstimate]
    groups: tuple[GroupAudit, ...]
    # metric -> the two groups behind it
    pairs: Mapping[str, GroupPair] = field(default_factory=dict)
    min_size: int = 0  # examples of a group, below which it is listed, but compared with no other
    threshold: float | None = None  # predictions are 1 where the score is at least this
    bins: tuple[float, ...] = ()  # edges of the score histograms
    probabilities: bool = False  # whether scores are
    dropped: int = 0  # examples in no group
    missing: int = 0  # examples that lack a value, dropped before
    weighted: bool = False  # whether examples have weights
    source: str = ""
    label: str = ""  # the column of labels
    made: str = ""  # the column of scores or predictions
    where: str = ""  # the condition that chose the examples
    rows: int = 0  # before that condition
    notes: tuple[str, ...] = ()  # caveats of the numbers
    parts: tuple[Audit, ...] = field(default=())  # of intersections: every attribute alone

    @property
    def compared(self) -> tuple[GroupAudit, ...]:
        """The groups that metrics compare: those with enough examples."""
        return tuple(group for group in self.groups if group.examples >= max(self.min_size, 1))

    def __str__(self) -> str:
        """What `fairbound audit` prints."""
        from fairbound.auditing._tables import report
        from fairbound.reports._page import as_text

        return as_text(report(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON: the fields by their names, with groups by theirs."""
        return dict(as_plain(self))


def as_plain(value: Any) -> Any:
    """What JSON can hold: fields by their names; a tuple of things that have a name is a dictionary
    by it.

    >>> as_plain((GroupAudit("A", 3, {}, {"accuracy": IntervalEstimate(0.5)}),))["A"]["rates"]
    {'accuracy': {'value': 0.5, 'low': None, 'high': None}}
    """
    if is_dataclass(value):
        return {each.name: as_plain(getattr(value, each.name)) for each in fields(value)}
    if hasattr(value, "_asdict"):
        return as_plain(value._asdict())
    if isinstance(value, Mapping):
        return {name: as_plain(part) for name, part in value.items()}
    if isinstance(value, tuple) and value and hasattr(value[0], "name"):
        return {part.name: as_plain(part) for part in value}
    return [as_plain(part) for part in value] if isinstance(value, tuple) else value


def audit(
    labels: Any,
    groups: Any,
    *,
    predictions: Any = None,
    scores: Any = None,
    threshold: float | None = None,
    weights: Any = None,
    names: Sequence[str] = (),
    attributes: Sequence[str] = ("group",),
    reference: str | None = None,
    min_size: int = 0,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
    intervals: bool = True,
    source: str = "",
) -> Audit:
    """Audit predictions, or scores at a threshold, by group; columns are arrays, tensors, lists or
    columns of a frame.

    Args:
        labels: 0 or 1 for each example.
        groups: text, or numbers 0, 1, ... (-1: none) with `names`.
        predictions: 0 or 1 for each example; or give scores.
        scores: the larger, the more likely label 1.
        threshold: predictions are 1 where the score is at least this; 0.5 for scores between 0 and
            1.
        weights: survey weights.
        reference: the group that the others are compared with; the largest if not given.
        min_size: groups with fewer examples have rates, but no difference or ratio compares them.
        level: of the intervals, whose bootstrap has `draws` samples; `intervals=False` is faster.

    >>> found = audit(
    ...     [1, 0, 1, 0], [0, 0, 1, 1], predictions=[1, 0, 0, 0], names=["A", "B"], draws=500
    ... )
    >>> found.metrics["demographic_parity_difference"].value
    0.5
    >>> found.groups[1].rates["true_positive_rate"].value
    0.0
    """
    g, names = _numbered(groups, names)
    given = _checked(labels, g, predictions, scores, threshold, weights)
    counts = Counts.of(
        given.labels, given.predictions, given.groups, weights=given.weights, names=names
    )
    reference = largest_group(counts) if reference is None else reference
    settings: dict[str, Any] = {"level": level, "draws": draws, "seed": seed}
    min_size, small = _compared(counts, reference, min_size)
    if intervals:
        metrics = metric_intervals(counts, reference, min_size=min_size, **settings)
    else:
        metrics = {
            k: IntervalEstimate(value)
            for k, value in values(counts, reference, min_size=min_size).items()
        }
    if intervals and len(names) > MANY_GROUPS:
        small = [
            *small,
            (
                f"there are more than {MANY_GROUPS:,} groups: the gaps between their rates have no"
                " intervals"
            ),
        ]
    rates = group_rates(counts, level=level, intervals=intervals)
    gaps = reference_gaps(counts, reference, min_size=min_size, intervals=intervals, **settings)
    notes = [*one_group(counts), *small, *one_sided(given.labels, given.predictions, given.scores)]
    scored = ScoreAudit([{} for _ in names])
    if given.scores is not None:
        scored = audit_scores(
            given.scores,
            given.labels,
            given.groups,
            given.weights,
            counts,
            reference,
            min_size,
            settings,
            intervals,
        )
    return Audit(
        attributes=tuple(attributes),
        examples=len(given.labels),
        reference=reference,
        level=level,
        metrics=metrics | scored.metrics,
        groups=tuple(
            GroupAudit(
                name,
                size,
                {
                    "true_positives": tp,
                    "false_positives": fp,
                    "true_negatives": tn,
                    "false_negatives": fn,
                },
                {rate: of_groups[i] for rate, of_groups in rates.items()},
                gaps.get(name, {}),
                **scored.groups[i],
            )
            for i, (name, size, ((tn, fp), (fn, tp))) in enumerate(
                zip(counts.names, counts.sizes().tolist(), counts.weight.tolist(), strict=True)
            )
        ),
        pairs=group_pairs(counts, min_size) | scored.pairs,
        min_size=min_size,
        threshold=given.threshold,
        bins=scored.bins,
        probabilities=scored.probabilities,
        dropped=int((g < 0).sum()),
        weighted=weights is not None,
        source=source,
        notes=(*notes, *scored.notes),
    )


def _compared(counts: Counts, reference: str, min_size: int) -> tuple[int, list[str]]:
    """The size of groups that are compared, which is 0 where fewer than two reach it, and notes on
    the small ones."""
    if reference not in counts.names:
        raise ValueError(
            f"no group is called {reference!r}; {did_you_mean(reference, counts.names)}"
        )
    sizes = counts.sizes()
    if int((sizes >= max(min_size, 1)).sum()) < 2:
        too_few = min_size > 1 and int((sizes > 0).sum()) > 1
        note = (
            f"fewer than two groups have {min_size} examples (`min_size`), so that all groups are"
            " compared"
        )
        return 0, [*([note] if too_few else []), *small_groups(counts, 0)]
    size = int(sizes[counts.names.index(reference)])
    if size < min_size:
        raise ValueError(
            f"the reference group {reference!r} has {counted(size, 'example')}, and only groups of"
            f" {min_size} or more are compared; give another `reference`, or lower `min_size`"
        )
    return min_size, small_groups(counts, min_size)


class _Examples(NamedTuple):
    """Those that are in a group."""

    labels: Tensor
    predictions: Tensor
    groups: Tensor
    scores: Tensor | None
    weights: Tensor | None
    threshold: float | None  # of scores


def _checked(
    labels: Any,
    groups: Tensor,
    predictions: Any,
    scores: Any,
    threshold: float | None,
    weights: Any,
) -> _Examples:
    if (predictions is None) == (scores is None):
        raise ValueError("an audit needs either predictions or scores, one of the two")
    if threshold is not None and math.isnan(threshold):
        raise ValueError("the threshold is NaN: every score would count as below it")
    y, inside = as_binary(labels, "labels"), groups >= 0
    same_length(labels=y, groups=groups)
    if not bool(inside.any()):
        raise ValueError("no example belongs to a group: there is nothing to audit")
    score = None if scores is None else as_vector(scores)
    # a float32 score is compared as such: 0.7 in float32 is below 0.7 in float64
    if score is None:
        made, threshold = as_binary(predictions, "predictions"), None
    else:
        same_length(labels=y, scores=score)
        threshold = _usual_threshold(score[inside]) if threshold is None else threshold
        made = (score >= threshold).long()
    w = None if weights is None else as_weights(weights)
    same_length(
        **{"labels": y, "predictions" if score is None else "scores": made},
        weights=y if w is None else w,
    )
    if w is not None and float(w[inside].sum()) == 0:
        raise ValueError("all weights are 0: there is nothing to audit")
    score = None if score is None else score[inside].double()
    return _Examples(
        y[inside], made[inside], groups[inside], score, None if w is None else w[inside], threshold
    )


def _usual_threshold(score: Tensor) -> float:
    """0.5, for scores that may be probabilities."""
    if bool(((score >= 0) & (score <= 1)).all()) or not bool(torch.isfinite(score).all()):
        return 0.5  # NaN and infinite scores are refused where they are used
    low, high = float(score.min()), float(score.max())
    raise ValueError(
        f"the default threshold 0.5 does not fit scores from {low:g} to {high:g};"
        f" {threshold_hint(score)}"
    )


def _numbered(groups: Any, names: Sequence[str]) -> tuple[Tensor, Sequence[str]]:
    """Groups as numbers; text and booleans are numbered in their order and name themselves."""
    array = groups if isinstance(groups, Tensor) else np.asarray(groups)
    kind = (
        "b" if array.dtype is torch.bool else "i" if isinstance(array, Tensor) else array.dtype.kind
    )
    if kind in "OUSb" and not names:
        column = np.asarray(array)
        attribute = Coded.of("group", column)
        return torch.from_numpy(attribute.levels(column)), attribute.labels
    numbers = as_numbers(array)
    return numbers, group_names(numbers, names)
