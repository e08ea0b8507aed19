"""What an audit finds in scores, in addition to the predictions that a threshold makes of them:
distances between their distributions, losses, ROC and AUC, calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound.auditing._findings import no_probabilities, not_compared
from fairbound.metrics._counts import Counts
from fairbound.metrics._group_losses import Losses, group_loss_intervals, loss_gaps
from fairbound.metrics._intervals import IntervalEstimate
from fairbound.metrics._roc import (
    auc,
    auc_difference,
    auc_intervals,
    calibration_by_group,
    histograms,
    roc_curve,
)
from fairbound.metrics._scores import Scores
from fairbound.metrics._wasserstein import SCORE_DRAWS, largest_w1, largest_wd
from fairbound.metrics.fairness_metrics import GroupPair, group_pair

# groups, the largest, whose score histograms, ROC curves and calibration are kept
MAX_CURVES = 1_000


class AuditedExamples(NamedTuple):
    """The examples that are in a group."""

    predictions: Tensor  # (n,) 0 or 1
    groups: Tensor  # (n,) numbers
    labels: Tensor | None = None  # (n,) 0 or 1
    scores: Tensor | None = None  # (n,) float64
    weights: Tensor | None = None  # (n,)
    threshold: float | None = None  # of scores


@dataclass
class ScoreAudit:
    """Metrics that need scores, and what is known of every group."""

    # fields of a GroupAudit: loss, auc, calibration_gap, histogram, roc, calibration
    groups: list[dict[str, Any]]
    metrics: dict[str, IntervalEstimate] = field(default_factory=dict)
    pairs: dict[str, GroupPair] = field(default_factory=dict)
    bins: tuple[float, ...] = ()  # edges of the histograms
    probabilities: bool = False
    notes: list[str] = field(default_factory=list)


def audit_scores(
    examples: AuditedExamples,
    counts: Counts,
    reference: str,
    min_size: int,
    settings: Mapping[str, Any],
) -> ScoreAudit:
    """Audit the scores of examples, if they have any; without labels, what needs them is left out.

    Args:
        examples: that are all in a group.
        counts: of the groups, for their names and sizes.
        reference: name of the group that the others are compared with.
        min_size: groups with fewer examples are compared with none.
        settings: level, draws and seed of the intervals.
    """
    _, groups, labels, score, weights, _ = examples
    audit = ScoreAudit([{} for _ in counts.names])
    if score is None:
        return audit
    audit.notes = not_compared(counts, min_size)
    large = counts.sizes() >= min_size
    scores = Scores.of(score, groups, labels, weights=weights, names=counts.names)
    # gaps skip groups with few examples
    compared = scores._replace(examples=scores.examples * large[scores.groups])
    _add_distances(audit, compared, counts, reference, settings)
    drawn = sorted(counts.largest(MAX_CURVES))
    audit.bins, shares = histograms(scores.only(drawn))
    for g, share in zip(drawn, shares, strict=True):
        audit.groups[g]["histogram"] = share
    why_not = no_probabilities(score)
    audit.probabilities = not why_not
    if labels is None:
        return audit
    areas = auc(scores)
    _add_to_groups(audit, "auc", auc_intervals(areas, settings["level"]))
    audit.metrics["auc_difference"], pair = auc_difference(compared, areas, **settings)
    _add_pair(audit, "auc_difference", "auc", pair, areas.value, counts)
    bins_of_groups = calibration_by_group(scores.only(drawn), settings["level"])
    for g, bins in zip(drawn, bins_of_groups, strict=True):
        audit.groups[g] |= {"calibration": bins, "roc": roc_curve(scores, g)}
    if why_not:
        audit.notes.insert(0, why_not)
        return audit
    for name, metric, measured in (
        ("loss", "largest_loss_gap", _cross_entropy(score, labels)),
        ("calibration_gap", "calibration_difference", score - labels.double()),
    ):
        losses = Losses.of(measured, groups, weights=weights, names=counts.names)
        losses = losses._replace(examples=losses.examples * large)
        _add_to_groups(audit, name, group_loss_intervals(losses, **settings))
        gaps, pair = loss_gaps(losses, reference, **settings)
        audit.metrics |= gaps if name == "loss" else {metric: gaps["largest_loss_gap"]}
        _add_pair(audit, metric, name, pair, losses.mean, counts)
    return audit


def _add_distances(
    audit: ScoreAudit,
    scores: Scores,
    counts: Counts,
    reference: str,
    settings: Mapping[str, Any],
) -> None:
    resampling = {**settings, "draws": min(SCORE_DRAWS, settings["draws"])}
    audit.metrics["w1"], pair = largest_w1(scores, **resampling)
    audit.metrics["wd"] = largest_wd(scores, reference, **resampling)
    weights = scores.weights.sum(0)
    means = scores.total(weights * scores.values) / scores.total(weights)
    _add_pair(audit, "w1", "mean_score", pair, means, counts)


def _add_to_groups(audit: ScoreAudit, name: str, estimates: Sequence[IntervalEstimate]) -> None:
    for group, estimate in zip(audit.groups, estimates, strict=True):
        group[name] = estimate


def _add_pair(
    audit: ScoreAudit,
    metric: str,
    compared: str,
    pair: tuple[int, int] | None,
    values: Tensor,
    counts: Counts,
) -> None:
    """The two groups behind a metric, the one with the higher of the values (G,) first."""
    if pair is not None:
        high_first = sorted(pair, key=lambda g: -values[g])
        sizes = counts.sizes()
        audit.pairs[metric] = group_pair(compared, counts.names, values, sizes, high_first)


def _cross_entropy(score: Tensor, y: Tensor) -> Tensor:
    """Per-example; scores of exactly 0 and 1 count as 1e-7 from there, so that one certain mistake
    is not infinite."""
    p = score.clamp(1e-7, 1 - 1e-7)
    return torch.nn.functional.binary_cross_entropy(p, y.double(), reduction="none")
