"""An audit of predictions: per-group rates and every fairness metric, each with its confidence
interval.

It needs predictions (or scores and a threshold) and groups, from any model. Rates that need labels
are there where labels are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.sentences import counted
from fairbound.auditing._findings import (
    one_group,
    one_sided,
    small_groups,
    threshold_hint,
)
from fairbound.auditing._score_audits import AuditedExamples, audit_scores
from fairbound.columns._column import Column
from fairbound.columns._groups import group_numbers, near_equal_note
from fairbound.columns._vectors import (
    as_binary,
    as_vector,
    as_weights,
    same_length,
)
from fairbound.metrics._counts import NAMES, WITHOUT_LABELS, Counts
from fairbound.metrics._intervals import DRAWS, MANY_GROUPS, IntervalEstimate
from fairbound.metrics._reference_gaps import ERROR_RATES, ReferenceGap, reference_gaps
from fairbound.metrics._roc import CalibrationBin
from fairbound.metrics.fairness_metrics import (
    METRICS,
    GroupPair,
    group_pairs,
    group_rates,
    metric_intervals,
)

# of all examples: smaller groups are not compared in an audit without labels (6 RCNY 5-301(d))
SMALL_SHARE = 0.02


@dataclass(frozen=True)
class GroupAudit:
    """Counts, rates and loss of one group."""

    name: str
    examples: int
    # true_positives, ... (selected and not_selected without labels): sums of weights, i.e. examples
    # where there are none
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

    @property
    def measured(self) -> dict[str, IntervalEstimate]:
        """The rates, and what is measured of the scores."""
        scored = {"auc": self.auc, "calibration_gap": self.calibration_gap, "loss": self.loss}
        return {**self.rates, **{name: of for name, of in scored.items() if of is not None}}


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
    def labeled(self) -> bool:
        """Whether there were labels; without them, rates and metrics that need labels are
        absent."""
        return not self.groups or "base_rate" in self.groups[0].rates

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
    min_size: int | None = None,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
    intervals: bool = True,
    source: str = "",
) -> Audit:
    """Audit predictions, or scores at a threshold, by group; columns are arrays, tensors, lists or
    columns of a frame.

    Without labels the audit has what needs none: selection rates, impact ratios (selection rate of
    a group over that of the most selected group), the distances between scores.

    Args:
        labels: (n,) 0 or 1 for each example; None: there are no labels.
        groups: (n,) text, or numbers 0, 1, ... (-1: none) with `names`. Without labels, missing
            values are in no group.
        predictions: (n,) 0 or 1 for each example; None: they are made from `scores`.
        scores: (n,) numbers, the larger, the more likely label 1; None: `predictions` are given.
        threshold: predictions are 1 where the score is at least this. None: 0.5, for scores between
            0 and 1; without labels, 1 is predicted above the median score of all examples.
        weights: (n,) survey weights, how much of the population an example represents; None: 1.
        names: of the groups 0, 1, ..., absent ones included; empty: their numbers.
        attributes: names of the columns that define the groups.
        reference: the group that the others are compared with. None: the largest one; without
            labels, the most selected one of at least `min_size` examples.
        min_size: groups with fewer examples have rates, but no difference or ratio compares them.
            None: 0; without labels, 2 % of all examples.
        level: of the intervals, between 0 and 1.
        draws: samples of the bootstrap that gives the intervals.
        seed: of the bootstrap; the same seed gives the same digits.
        intervals: whether to compute intervals; False is faster.
        source: where the examples come from, such as a file's name.

    Returns:
        The audit; `metrics` and `groups` hold its numbers, `notes` its caveats.

    >>> audited = audit(
    ...     [1, 0, 1, 0], [0, 0, 1, 1], predictions=[1, 0, 0, 0], names=["A", "B"], draws=500
    ... )
    >>> audited.metrics["demographic_parity_difference"].value
    0.5
    >>> audited.groups[1].rates["true_positive_rate"].value
    0.0
    >>> hired = audit(None, ["A"] * 4 + ["B"] * 4, predictions=[1, 1, 1, 0, 1, 0, 0, 0], draws=500)
    >>> round(hired.groups[1].against_reference["positive_rate"].ratio.value, 3)
    0.333
    """
    labeled = labels is not None
    g, names = group_numbers(groups, names) if labeled else _known(groups, names)
    by_median = not labeled and threshold is None
    examples = _checked(labels, g, predictions, scores, threshold, weights)
    decided, group, y, _, w, threshold = examples
    some_labels = torch.zeros_like(group) if y is None else y
    counts = Counts.of(some_labels, decided, group, weights=w, names=names)
    if min_size is None:
        min_size = 0 if labeled else math.ceil(SMALL_SHARE * len(g))
    min_size, notes = _compared(counts, min_size)
    notes += one_sided(examples) if labeled else _unlabeled(examples, len(g), by_median)
    reference = _reference(counts, reference, min_size, labeled)
    # without intervals, what needs draws gets few of them
    settings: dict[str, Any] = {"level": level, "draws": draws if intervals else 10, "seed": seed}
    rates = group_rates(counts, level=level)
    if intervals and len(names) > MANY_GROUPS:
        notes.append(
            f"there are more than {MANY_GROUPS:,} groups: the gaps between their rates have no"
            " intervals"
        )
    known_rates, compared_rates = (NAMES, ERROR_RATES) if labeled else (WITHOUT_LABELS,) * 2
    metrics = {
        name: estimate
        for name, estimate in metric_intervals(
            counts, reference, min_size=min_size, **settings
        ).items()
        if set(METRICS[name].rates) <= {*known_rates}
    }
    if alike := near_equal_note(names, " x ".join(attributes)):
        notes.append(alike)
    gaps = reference_gaps(counts, reference, compared_rates, min_size=min_size, **settings)
    scored = audit_scores(examples, counts, reference, min_size, settings)
    pairs = {name: pair for name, pair in group_pairs(counts, min_size).items() if name in metrics}
    audited = Audit(
        attributes=tuple(attributes),
        examples=len(group),
        reference=reference,
        level=level,
        metrics=metrics | scored.metrics,
        groups=tuple(
            GroupAudit(
                name,
                size,
                _cells(table, labeled),
                {rate: rates[rate][i] for rate in known_rates},
                gaps.get(name, {}),
                **scored.groups[i],
            )
            for i, (name, size, table) in enumerate(
                zip(counts.names, counts.sizes().tolist(), counts.weight.tolist(), strict=True)
            )
        ),
        pairs=pairs | scored.pairs,
        min_size=min_size,
        threshold=threshold,
        bins=scored.bins,
        probabilities=scored.probabilities,
        dropped=int((g < 0).sum()),
        weighted=w is not None,
        source=source,
        notes=(*one_group(counts), *notes, *scored.notes),
    )
    return audited if intervals else values_only(audited)


def values_only(measured: Any) -> Any:
    """The same numbers without their intervals; then no difference is beyond chance."""
    if isinstance(measured, IntervalEstimate):
        return IntervalEstimate(measured.value)
    if isinstance(measured, ReferenceGap):
        measured = measured._replace(beyond_chance=False)
    if isinstance(measured, Audit | GroupAudit):
        return replace(measured, **values_only(vars(measured)))
    if isinstance(measured, Mapping):
        return {name: values_only(part) for name, part in measured.items()}
    if not isinstance(measured, tuple):
        return measured
    parts = map(values_only, measured)
    return tuple(parts) if type(measured) is tuple else type(measured)(*parts)


def _cells(table: Sequence[Sequence[float]], labeled: bool) -> dict[str, float]:
    """The counts of a group by name, from its table [label][prediction]."""
    (tn, fp), (fn, tp) = table
    if not labeled:
        return {"selected": fp, "not_selected": tn}
    return {
        "true_positives": tp,
        "false_positives": fp,
        "true_negatives": tn,
        "false_negatives": fn,
    }


def _compared(counts: Counts, min_size: int) -> tuple[int, list[str]]:
    """The size of groups that are compared, which is 0 where fewer than two reach it, and notes on
    the small ones."""
    sizes = counts.sizes()
    if int((sizes >= max(min_size, 1)).sum()) >= 2:
        return min_size, small_groups(counts, min_size)
    notes = small_groups(counts, 0)
    if min_size > 1 and int((sizes > 0).sum()) > 1:
        notes.insert(
            0,
            f"fewer than two groups have `min_size={min_size}` examples, so that all groups are"
            " compared",
        )
    return 0, notes


def _reference(counts: Counts, reference: str | None, min_size: int, labeled: bool) -> str:
    """The group that the others are compared with."""
    sizes = counts.sizes()
    if reference is None and not labeled:
        selected = counts.rates().named("positive_rate").values
        compared = (sizes >= max(min_size, 1)) & (counts.weight.sum((1, 2)) > 0)
        return counts.names[int(torch.where(compared, selected, -1.0).argmax())]
    at = counts.numbered(reference)
    size = int(sizes[at])
    if reference is not None and size < min_size:
        raise ValueError(
            f"the reference group {reference!r} has {counted(size, 'example')}, and only groups of"
            f" {min_size} or more are compared; give another `reference`, or lower `min_size`"
        )
    return counts.names[at]


def _unlabeled(examples: AuditedExamples, rows: int, by_median: bool) -> list[str]:
    """Notes on an audit without labels: examples in no group, and what is predicted 1."""
    notes = []
    unknown = rows - len(examples.groups)
    if unknown:
        notes.append(
            f"{unknown:,} of {counted(rows, 'example')} lack a group (unknown): they are in no rate"
        )
    if by_median and examples.threshold is not None:
        notes.append(
            "1 is predicted for scores above the median of all examples,"
            f" {examples.threshold:g}: positive rates are scoring rates"
        )
    return notes


def _checked(
    labels: Any,
    groups: Tensor,
    predictions: Any,
    scores: Any,
    threshold: float | None,
    weights: Any,
) -> AuditedExamples:
    """The examples that are in a group."""
    if (predictions is None) == (scores is None):
        raise ValueError("an audit needs either predictions or scores, one of the two")
    if threshold is not None and math.isnan(threshold):
        raise ValueError("the threshold is NaN: every score would count as below it")
    y = None if labels is None else as_binary(labels, "labels")
    decided = None if predictions is None else as_binary(predictions, "predictions")
    score = None if scores is None else as_vector(scores)
    w = None if weights is None else as_weights(weights)
    columns = {"labels": y, "predictions": decided, "scores": score, "weights": w}
    known = {name: column for name, column in columns.items() if column is not None}
    same_length(**known, groups=groups)
    inside = groups >= 0
    if not bool(inside.any()):
        raise ValueError("no example belongs to a group: there is nothing to audit")
    if w is not None and float(w[inside].sum()) == 0:
        raise ValueError("all weights are 0: there is nothing to audit")
    if score is not None:
        if threshold is None and labels is None:
            score = score.double()  # float32 would round the next number above the median to it
            threshold = math.nextafter(_median(score, w), math.inf)
        elif threshold is None:
            threshold = _usual_threshold(score[inside])
        # a float32 score is compared as such: 0.7 in float32 is below 0.7 in float64
        known |= {"predictions": (score >= threshold).long(), "scores": score.double()}
    chosen = {name: column[inside] for name, column in known.items()}
    used = None if score is None else threshold
    return AuditedExamples(groups=groups[inside], threshold=used, **chosen)


def _median(score: Tensor, weights: Tensor | None) -> float:
    """The middle of all scores: of an even number, the mean of the middle two."""
    if not bool(torch.isfinite(score).all()):
        raise ValueError("scores are NaN or infinite, so that their median is not known")
    sorted_scores, order = score.sort()
    w = torch.ones_like(score) if weights is None else weights[order]
    below = w.cumsum(0) / w.sum()
    middle = [int(torch.searchsorted(below, 0.5, right=right)) for right in (False, True)]
    return float(sorted_scores[middle].mean())


def _usual_threshold(score: Tensor) -> float:
    """0.5, for scores that may be probabilities."""
    if bool(((score >= 0) & (score <= 1)).all()) or not bool(torch.isfinite(score).all()):
        return 0.5  # NaN and infinite scores are refused where they are used
    raise ValueError(f"the default threshold 0.5 does not fit {threshold_hint(score)}")


def _known(groups: Any, names: Sequence[str]) -> tuple[Tensor, Sequence[str]]:
    """Groups as numbers, where a missing value is in none."""
    if not names and not isinstance(groups, Tensor):
        column = Column.of(groups, "groups")
        names = column.factorized()[1] if column.kind == "text" else ()
    return group_numbers(groups, names)
