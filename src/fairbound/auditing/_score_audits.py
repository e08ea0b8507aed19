"""What an audit finds in scores, in addition to the predictions that a threshold makes of them:
distances between their distributions, losses, ROC and AUC, calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fairbound.auditing._findings import no_probabilities, not_compared
from fairbound.metrics._counts import Counts
from fairbound.metrics._group_losses import Losses, group_loss_intervals, loss_gaps
from fairbound.metrics._intervals import FEWEST, IntervalEstimate
from fairbound.metrics._roc import (
    Ranked,
    auc,
    auc_difference,
    auc_intervals,
    calibration,
    histograms,
)
from fairbound.metrics._wasserstein import Scores, distances, farthest_groups
from fairbound.metrics.fairness_metrics import GroupPair

FEWEST_DRAWS = 10
# groups, the largest, whose score histograms, ROC curves and calibration are kept
MAX_CURVES = 1_000


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


@dataclass(frozen=True)
class _Scored:
    """What is audited; every example is in a group."""

    score: Tensor  # (n,)
    labels: Tensor  # (n,)
    groups: Tensor  # (n,)
    weights: Tensor | None  # (n,)
    counts: Counts
    large: Tensor  # (G,) whether the group has enough examples to be compared
    reference: str
    settings: Mapping[str, Any]  # of intervals

    @property
    def named(self) -> dict[str, Any]:
        return {"weights": self.weights, "names": self.counts.names}


def audit_scores(
    score: Tensor,
    labels: Tensor,
    groups: Tensor,
    weights: Tensor | None,
    counts: Counts,
    reference: str,
    min_size: int,
    settings: Mapping[str, Any],
    intervals: bool = True,
) -> ScoreAudit:
    """All of it. Groups with fewer than `min_size` examples are compared with none."""
    if not intervals:  # what needs draws gets few of them, and all intervals are taken away
        settings = {**settings, "draws": FEWEST_DRAWS}
    large = counts.sizes() >= min_size
    scored = _Scored(score, labels, groups, weights, counts, large, reference, settings)
    audit = ScoreAudit([{} for _ in counts.names])
    _add_distances(audit, scored, intervals)
    _add_auc(audit, scored)
    _add_curves(audit, scored)
    why_not = no_probabilities(score)
    audit.probabilities = not why_not
    if why_not:
        audit.notes.append(why_not)
    else:
        _add_losses(audit, scored)
    audit.notes += not_compared(counts, min_size)
    if not intervals:
        audit.metrics = {
            name: IntervalEstimate(estimate.value) for name, estimate in audit.metrics.items()
        }
        for group in audit.groups:
            for name in ("auc", "loss", "calibration_gap"):
                if name in group:
                    group[name] = IntervalEstimate(group[name].value)
            bins = group.get("calibration", ())
            group["calibration"] = tuple(
                each._replace(rate=IntervalEstimate(each.rate.value)) for each in bins
            )
    return audit


def _add_distances(audit: ScoreAudit, of: _Scored, intervals: bool) -> None:
    compared = (
        of.groups if bool(of.large.all()) else torch.where(of.large[of.groups], of.groups, -1)
    )
    scores = Scores.of(of.score, compared, **of.named)
    few = {} if intervals else {"draws": FEWEST_DRAWS}
    audit.metrics |= distances(
        scores, of.reference, level=of.settings["level"], seed=of.settings["seed"], **few
    )
    pair = farthest_groups(scores)
    if pair is not None:
        means = {
            g: float((values * w).sum() / w.sum())
            for g in pair
            for values, w in [scores.of_group(g)]
        }
        audit.pairs["w1"] = _pair(
            "mean_score", pair if means[pair[0]] >= means[pair[1]] else pair[::-1], means, of
        )


def _add_auc(audit: ScoreAudit, of: _Scored) -> None:
    ranked = Ranked.of(of.score, of.labels, of.groups, **of.named)
    areas = auc(ranked)
    for group, estimate in zip(
        audit.groups, auc_intervals(areas, of.settings["level"]), strict=True
    ):
        group["auc"] = estimate
    among = ranked._replace(examples=ranked.examples * of.large)
    audit.metrics["auc_difference"], pair = auc_difference(among, areas, **of.settings)
    if pair is not None:
        audit.pairs["auc_difference"] = _pair("auc", pair, areas.value, of)
    for i in _largest(of.counts, MAX_CURVES):
        audit.groups[i]["roc"] = ranked.curve(i)


def _add_curves(audit: ScoreAudit, of: _Scored) -> None:
    drawn = _largest(of.counts, MAX_CURVES)
    number = torch.full((len(of.counts.names),), -1)
    number[torch.tensor(drawn)] = torch.arange(len(drawn))
    numbers = number[of.groups]
    inside = numbers >= 0
    score, g, w = (
        of.score[inside],
        numbers[inside],
        None if of.weights is None else of.weights[inside],
    )
    audit.bins, shares = histograms(score, g, w, len(drawn))
    bins = calibration(score, of.labels[inside], g, w, len(drawn), of.settings["level"])
    for i, share, calibrated in zip(drawn, shares, bins, strict=True):
        audit.groups[i] |= {"histogram": share, "calibration": calibrated}


def _add_losses(audit: ScoreAudit, of: _Scored) -> None:
    """Mean losses, and the means of score minus label, which are the group's gap in calibration."""
    for name, metric, values in (
        ("loss", "largest_loss_gap", _cross_entropy(of.score, of.labels)),
        ("calibration_gap", "calibration_difference", of.score - of.labels.double()),
    ):
        losses = Losses.of(values, of.groups, **of.named)
        # gaps skip groups with few examples
        losses = replace(losses, examples=losses.examples * of.large)
        gaps = loss_gaps(losses, of.reference, **of.settings)
        audit.metrics |= gaps if name == "loss" else {metric: gaps["largest_loss_gap"]}
        for group, estimate in zip(
            audit.groups, group_loss_intervals(losses, **of.settings), strict=True
        ):
            group[name] = estimate
        usable = ((losses.examples >= FEWEST) & (losses.weight > 0)).nonzero().flatten()
        if len(usable) > 1:
            mean = losses.mean[usable]
            pair = int(usable[int(mean.argmax())]), int(usable[int(mean.argmin())])
            audit.pairs[metric] = _pair(name, pair, losses.mean, of)


def _pair(
    name: str, pair: Sequence[int], values: Mapping[int, float] | Tensor, of: _Scored
) -> GroupPair:
    sizes = of.counts.sizes()
    high, low = ((of.counts.names[i], float(values[i]), int(sizes[i])) for i in pair)
    return GroupPair(name, *high, *low)


def _largest(counts: Counts, most: int) -> list[int]:
    """The groups with the most examples, in their order."""
    order = counts.sizes().argsort(descending=True, stable=True)[:most]
    return sorted(order.tolist())


def _cross_entropy(score: Tensor, y: Tensor) -> Tensor:
    """Per-example; scores of exactly 0 and 1 count as 1e-7 from there, so that one certain mistake
    is not infinite."""
    p = score.clamp(1e-7, 1 - 1e-7)
    return torch.nn.functional.binary_cross_entropy(p, y.double(), reduction="none")
