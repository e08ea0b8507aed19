"""An audit of predictions: per-group rates and every fairness metric, each with its confidence interval.

It needs labels, predictions (or scores and a threshold) and groups, from any model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound._utils.sentences import counted, did_you_mean, marked_rows
from fairbound.auditing.score_audits import GroupScores, ScoreAudit, audit_scores
from fairbound.auditing.text import (
    interval,
    number,
    one_group,
    one_sided,
    own_group,
    score_range,
    small_groups,
    threshold_hint,
)
from fairbound.constraints.subgroups import (
    Attribute,
    Coded,
    Intersection,
    is_missing,
    no_column,
    text_among_numbers,
)
from fairbound.data.attributes import is_census_export, parse_attributes
from fairbound.data.outcomes import binary, binary_like, class_count, like_one_against_rest, one_against_rest
from fairbound.data.where import rows_where
from fairbound.metrics.counts import (
    Counts,
    as_binary,
    as_numbers,
    as_vector,
    as_weights,
    group_names,
    same_length,
)
from fairbound.metrics.fairness_metrics import (
    GroupPair,
    group_pairs,
    group_rates,
    largest_group,
    metric_intervals,
    values,
)
from fairbound.metrics.intervals import DRAWS, IntervalEstimate
from fairbound.metrics.reference_gaps import ReferenceGap, reference_gaps
from fairbound.metrics.roc import CalibrationBin

Rows = NDArray[np.int64]  # numbers of rows
SHOWN_GROUPS = 20  # by print(audit)
MAX_CLASSES = 50  # different numbers in a label, above which it is no set of classes


@dataclass(frozen=True)
class GroupAudit:
    """Counts, rates and loss of one group."""

    name: str
    examples: int
    counts: Mapping[str, float]  # true_positives, ...: sums of weights, i.e. examples where there are none
    rates: Mapping[str, IntervalEstimate]
    against_reference: Mapping[str, ReferenceGap] = field(default_factory=dict)  # by error rate; of compared groups
    loss: IntervalEstimate | None = None  # mean cross-entropy of the scores
    auc: IntervalEstimate | None = None
    calibration_gap: IntervalEstimate | None = None  # mean score minus base rate, where scores are probabilities
    histogram: tuple[float, ...] = ()  # share of the group's weight in each bin of Audit.bins
    roc: tuple[tuple[float, float], ...] = ()  # (false, true positive rate) for thresholds from high to low
    calibration: tuple[CalibrationBin, ...] = ()  # mean score and share with label 1, from low to high scores


@dataclass(frozen=True)
class Audit:
    """The audit of one partition into groups."""

    attributes: tuple[str, ...]  # the columns that define the groups
    examples: int
    reference: str  # the group that signed differences compare the others to
    level: float  # of the intervals
    metrics: Mapping[str, IntervalEstimate]
    groups: tuple[GroupAudit, ...]
    pairs: Mapping[str, GroupPair] = field(default_factory=dict)  # metric -> the two groups behind it
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
        """Groups and metrics; the command line has more."""
        lines = [f"{self.examples:,} examples, {len(self.groups)} groups by {' x '.join(self.attributes)}"]
        lines += [f"{'':26}{'examples':>10} {'positive rate':>24}"]
        for group in self.groups[:SHOWN_GROUPS]:
            rate = group.rates["positive_rate"]
            lines.append(f"{group.name:26.26}{group.examples:10,} {number(rate.value):>9} {interval(rate):>14}")
        if len(self.groups) > SHOWN_GROUPS:
            lines.append(f"... and {len(self.groups) - SHOWN_GROUPS:,} groups more (`.groups`)")
        for name, found in self.metrics.items():
            if found.value is not None:
                lines.append(f"{name:36} {number(found.value):>9} {interval(found):>14}")
        lines.append(f"reference group: {self.reference}; {100 * self.level:g} % intervals")
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON: metric name -> value and interval, group name -> counts and rates."""
        found = {
            "source": self.source,
            "label": self.label,
            "score" if self.threshold is not None else "prediction": self.made,
            "where": self.where,
            "by": list(self.attributes),
            "examples": self.examples,
            "dropped": self.dropped,
            "dropped_missing": self.missing,
            "level": self.level,
            "reference": self.reference,
            "min_size": self.min_size,
            "threshold": self.threshold,
            "weighted": self.weighted,
            "score_bins": list(self.bins),
            "metrics": {name: estimate._asdict() for name, estimate in self.metrics.items()},
            "pairs": {name: pair._asdict() for name, pair in self.pairs.items()},
            "groups": {group.name: _group_dict(group) for group in self.groups},
            "notes": list(self.notes),
        }
        if self.parts:
            found["each"] = {part.attributes[0]: part.to_dict() for part in self.parts}
        return found


def _group_dict(group: GroupAudit) -> dict[str, Any]:
    found: dict[str, Any] = {"examples": group.examples, "counts": dict(group.counts)}
    found["rates"] = {name: estimate._asdict() for name, estimate in group.rates.items()}
    found["against_reference"] = {
        rate: {"difference": gap.difference._asdict(), "ratio": gap.ratio._asdict(), "beyond_chance": gap.is_certain}
        for rate, gap in group.against_reference.items()
    }
    for name, estimate in (("loss", group.loss), ("auc", group.auc), ("calibration_gap", group.calibration_gap)):
        if estimate is not None:
            found[name] = estimate._asdict()
    if group.histogram:
        found["score_shares"] = list(group.histogram)
    if group.roc:
        found["roc"] = [list(point) for point in group.roc]
    if group.calibration:
        found["calibration"] = [
            {"score": one.score, "rate": one.rate._asdict(), "examples": one.examples} for one in group.calibration
        ]
    return found


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
    """Audit predictions, or scores at a threshold (0.5 for scores between 0 and 1; on another scale it must be given).
    Groups are text, or numbers 0, 1, ... (-1: none) with `names`. Groups with fewer than `min_size` examples have
    rates, but no difference or ratio compares them. Without `intervals` there are values only, sooner.

    >>> found = audit([1, 0, 1, 0], [0, 0, 1, 1], predictions=[1, 0, 0, 0], names=["A", "B"], draws=500)
    >>> found.metrics["demographic_parity_difference"].value
    0.5
    >>> found.groups[1].rates["true_positive_rate"].value
    0.0
    """
    g, names = _numbered(groups, names)
    given = _checked(labels, g, predictions, scores, threshold, weights)
    counts = Counts.of(given.labels, given.predictions, given.groups, weights=given.weights, names=names)
    reference = largest_group(counts) if reference is None else reference
    settings: dict[str, Any] = {"level": level, "draws": draws, "seed": seed}
    min_size, small = _compared(counts, reference, min_size)
    if intervals:
        metrics = metric_intervals(counts, reference, min_size=min_size, **settings)
    else:
        metrics = {k: IntervalEstimate(value) for k, value in values(counts, reference, min_size=min_size).items()}
    gaps = reference_gaps(counts, reference, min_size=min_size, intervals=intervals, **settings)
    notes = [*one_group(counts), *small, *one_sided(given.labels, given.predictions, given.scores)]
    scored = ScoreAudit([GroupScores() for _ in names])
    if given.scores is not None:
        scored = audit_scores(
            given.scores, given.labels, given.groups, given.weights, counts, reference, min_size, settings, intervals
        )  # fmt: skip
    return Audit(
        attributes=tuple(attributes),
        examples=len(given.labels),
        reference=reference,
        level=level,
        metrics=metrics | scored.metrics,
        groups=_group_audits(counts, group_rates(counts, level=level, intervals=intervals), gaps, scored),
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
    """The size of groups that are compared, which is 0 where fewer than two reach it, and notes on the small ones."""
    if reference not in counts.names:
        raise ValueError(f"no group is called {reference!r}; {did_you_mean(reference, counts.names)}")
    sizes = counts.sizes()
    if int((sizes >= max(min_size, 1)).sum()) < 2:
        too_few = min_size > 1 and int((sizes > 0).sum()) > 1
        note = f"fewer than two groups have {min_size} examples (--min-size), so that all groups are compared"
        return 0, [*([note] if too_few else []), *small_groups(counts, 0)]
    size = int(sizes[counts.names.index(reference)])
    if size < min_size:
        raise ValueError(
            f"the reference group {reference!r} has {counted(size, 'example')}, and only groups of {min_size} or more "
            "are compared; name another one (--reference), or lower --min-size"
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
    labels: Any, groups: Tensor, predictions: Any, scores: Any, threshold: float | None, weights: Any
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
    # a float32 score is compared as such: .7 in float32 is below .7 in float64
    if score is None:
        made, threshold = as_binary(predictions, "predictions"), None
    else:
        same_length(labels=y, scores=score)
        threshold = _usual_threshold(score[inside]) if threshold is None else threshold
        made = (score >= threshold).long()
    w = None if weights is None else as_weights(weights)
    same_length(**{"labels": y, "predictions" if score is None else "scores": made}, weights=y if w is None else w)
    if w is not None and float(w[inside].sum()) == 0:
        raise ValueError("all weights are 0: there is nothing to audit")
    score = None if score is None else score[inside].double()
    return _Examples(y[inside], made[inside], groups[inside], score, None if w is None else w[inside], threshold)


def _usual_threshold(score: Tensor) -> float:
    """0.5, for scores that may be probabilities."""
    if bool(((score >= 0) & (score <= 1)).all()) or not bool(torch.isfinite(score).all()):
        return 0.5  # NaN and infinite scores are refused where they are used
    raise ValueError(f"{score_range(score)}, so that 0.5 is no threshold of theirs; give one: {threshold_hint(score)}")


def _group_audits(
    counts: Counts,
    rates: Mapping[str, Sequence[IntervalEstimate]],
    gaps: Mapping[str, Mapping[str, ReferenceGap]],
    scored: ScoreAudit,
) -> tuple[GroupAudit, ...]:
    sizes, weight = counts.sizes().tolist(), counts.weight.tolist()
    return tuple(
        GroupAudit(
            name,
            sizes[i],
            _confusion(weight[i]),
            {rate: estimates[i] for rate, estimates in rates.items()},
            gaps.get(name, {}),
            **vars(scored.groups[i]),
        )
        for i, name in enumerate(counts.names)
    )


def audit_columns(
    columns: Mapping[str, NDArray[Any]],
    *,
    label: str,
    groups: str | Sequence[Attribute],
    prediction: str | None = None,
    score: str | None = None,
    weight: str | None = None,
    positive: Any = None,
    where: str = "",
    drop_missing: bool = False,
    reference: str | None = None,
    **settings: Any,
) -> Audit:
    """Audit named columns: of the groups that attributes ("race,age:25:65") define together, and of each alone.

    `positive` is the label's value that counts as 1; of several classes, it is the one against the rest.
    `where` chooses examples by a condition, such as "age >= 18 and race in ('A', 'B')". `drop_missing` skips those that
    lack a value in one of the columns, and a note says how many. The other settings are those of `audit`."""
    given, notes = groups, list(getattr(columns, "notes", ()))
    census = isinstance(given, str) and is_census_export(given, columns)
    by = [one.name for one in (parse_attributes(given, columns, census) if isinstance(given, str) else given)]
    used = {name: _column(columns, name) for name in (label, prediction, score, weight, *by) if name is not None}
    number, missing = np.arange(len(used[label])), 0  # of the row in the table, from 0
    if where:
        number = number[rows_where(where, columns)]
    if drop_missing:
        number, missing, lacking = _complete(used, number)
        notes += lacking
    columns = {name: column[number] for name, column in used.items()}
    for name in filter(None, (label, prediction, score, weight)):
        _refuse_missing(columns[name], name, number)
    groups = parse_attributes(given, columns, census) if isinstance(given, str) else given
    if census:
        notes.append("groups are named by the labels of the American Community Survey's code book")
    notes += [own_group(name, what) for name, what in ((label, "label"), (prediction, "prediction")) if name in by]
    truth = columns[label]
    several = positive is not None and class_count(truth, label) > 2
    if several:
        y, others = one_against_rest(truth, label, positive)
        notes.append(f"the label {label!r} has {len(others) + 1} classes: {positive} counts as 1, all others as 0")
    else:
        y = _binary_label(truth, label, positive)
    made: dict[str, Any] = {}
    if prediction is not None:
        as_label = like_one_against_rest if several else binary_like
        made["predictions"] = as_label(columns[prediction], prediction, truth, label, positive)
    if score is not None:
        made["scores"] = _numbers(columns[score], score, number)
    if weight is not None:
        made["weights"] = _numbers(columns[weight], weight, number)

    def one(attributes: Sequence[Attribute], reference: str | None) -> Audit:
        found = Intersection(tuple(attributes)).group(columns)
        names = [attribute.name for attribute in attributes]
        return audit(y, found.ids, names=found.names, attributes=names, reference=reference, **made, **settings)

    whole = one(groups, reference)
    whole = replace(
        whole, label=label, made=prediction or score or "", where=where, rows=len(used[label]), missing=missing,
        notes=(*notes, *whole.notes),
    )  # fmt: skip
    return whole if len(groups) == 1 else replace(whole, parts=tuple(one([alone], None) for alone in groups))


def _complete(columns: Mapping[str, NDArray[Any]], number: Rows) -> tuple[Rows, int, list[str]]:
    """Those of the rows that lack nothing in these columns, how many others there are, and a sentence about them."""
    absent = {name: is_missing(column[number]) for name, column in columns.items()}
    lacking = np.logical_or.reduce(list(absent.values()))
    if not lacking.any():
        return number, 0, []
    if lacking.all():
        raise ValueError(f"every example lacks a value in {', '.join(absent)}: there is nothing to audit")
    each = ", ".join(f"{name} {int(gone.sum()):,}" for name, gone in absent.items() if gone.any())
    note = f"{int(lacking.sum()):,} of {len(lacking):,} examples were dropped, with missing values ({each})"
    return number[~lacking], int(lacking.sum()), [note]


def _refuse_missing(column: NDArray[Any], name: str, number: Rows) -> None:
    missing = is_missing(column)
    if missing.any():
        raise ValueError(
            f"the column {name!r} is missing in {marked_rows(missing, number)}; drop those rows (--drop-missing)"
        )


def _binary_label(column: NDArray[Any], name: str, positive: Any) -> NDArray[np.int64]:
    several = class_count(column, name)
    if positive is None and several > 2 and (several <= MAX_CLASSES or column.dtype.kind == "O"):
        raise ValueError(
            f"the column {name!r} is not binary: {several} different values in {len(column)} rows; name the one that "
            f"counts as 1, against the rest: --positive {np.unique(column[~is_missing(column)])[-1]} (positive)"
        )
    return binary(column, name, positive)


def _column(columns: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in columns:
        raise ValueError(no_column(name, columns))
    return columns[name]


def _numbers(column: NDArray[Any], name: str, number: Rows) -> NDArray[Any]:
    if column.dtype.kind not in "iufb":
        raise ValueError(
            f"{name} must hold numbers, found {text_among_numbers(column, number)}; correct it, or, where such text "
            "marks a missing value, name it (--missing) and drop those rows (--drop-missing)"
        )
    return column if column.dtype.kind == "f" else column.astype(np.float64)


def _numbered(groups: Any, names: Sequence[str]) -> tuple[Tensor, Sequence[str]]:
    """Groups as numbers; text and booleans are numbered in their order and name themselves."""
    array = groups if isinstance(groups, Tensor) else np.asarray(groups)
    kind = "b" if array.dtype is torch.bool else "i" if isinstance(array, Tensor) else array.dtype.kind
    if kind in "OUSb" and not names:
        column = np.asarray(array)
        attribute = Coded.of("group", column)
        return torch.from_numpy(attribute.levels(column)), attribute.labels
    numbers = as_numbers(array)
    return numbers, group_names(numbers, names)


def _confusion(weight: Sequence[Sequence[float]]) -> dict[str, float]:
    (tn, fp), (fn, tp) = weight
    return {"true_positives": tp, "false_positives": fp, "true_negatives": tn, "false_negatives": fn}
