"""What an audit finds in scores, in addition to the predictions that a threshold makes of them: distances between their
distributions, losses, ROC and AUC, calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fairbound.auditing.text import no_probabilities, not_compared
from fairbound.metrics.counts import Counts
from fairbound.metrics.fairness_metrics import GroupPair
from fairbound.metrics.group_losses import Losses, group_loss_intervals, loss_gaps
from fairbound.metrics.intervals import FEWEST, IntervalEstimate
from fairbound.metrics.roc import (
    CalibrationBin,
    Ranked,
    auc,
    auc_difference,
    auc_intervals,
    calibration,
    histograms,
)
from fairbound.metrics.wasserstein import Scores, distances, farthest_groups

FEWEST_DRAWS = 10
MAX_CURVES = 1_000  # groups, the largest, whose score histograms, ROC curves and calibration are kept


@dataclass
class GroupScores:
    """What is known of the scores of one group."""

    loss: IntervalEstimate | None = None
    auc: IntervalEstimate | None = None
    calibration_gap: IntervalEstimate | None = None
    histogram: tuple[float, ...] = ()
    roc: tuple[tuple[float, float], ...] = ()
    calibration: tuple[CalibrationBin, ...] = ()


@dataclass
class ScoreAudit:
    """Metrics that need scores."""

    groups: list[GroupScores]
    metrics: dict[str, IntervalEstimate] = field(default_factory=dict)
    pairs: dict[str, GroupPair] = field(default_factory=dict)
    bins: tuple[float, ...] = ()  # edges of the histograms
    probabilities: bool = False
    notes: list[str] = field(default_factory=list)


def audit_scores(
    score: Tensor, labels: Tensor, groups: Tensor, weights: Tensor | None, counts: Counts, reference: str,
    min_size: int, settings: Mapping[str, Any], intervals: bool = True,
) -> ScoreAudit:  # fmt: skip
    """All of it; every example is in a group. Groups with fewer than `min_size` examples are compared with none."""
    if not intervals:  # what needs draws gets few of them, and all intervals are taken away
        settings = {**settings, "draws": FEWEST_DRAWS}
    named: dict[str, Any] = {"weights": weights, "names": counts.names}
    found = ScoreAudit([GroupScores() for _ in counts.names])
    large = counts.sizes() >= min_size
    compared = groups if bool(large.all()) else torch.where(large[groups], groups, -1)
    _add_distances(found, Scores.of(score, compared, **named), counts, reference, settings, intervals)
    _add_auc(found, Ranked.of(score, labels, groups, **named), counts, large, settings)
    _add_curves(found, score, labels, groups, weights, counts, settings["level"])
    why_not = no_probabilities(score)
    found.probabilities = not why_not
    if why_not:
        found.notes.append(why_not)
    else:
        _add_losses(found, score, labels, groups, counts, large, reference, named, settings)
    found.notes += not_compared(counts, min_size)
    if not intervals:
        _take_away_intervals(found)
    return found


def _take_away_intervals(found: ScoreAudit) -> None:
    found.metrics = {name: IntervalEstimate(estimate.value) for name, estimate in found.metrics.items()}
    for group in found.groups:
        group.loss, group.auc, group.calibration_gap = (
            None if estimate is None else IntervalEstimate(estimate.value)
            for estimate in (group.loss, group.auc, group.calibration_gap)
        )
        group.calibration = tuple(one._replace(rate=IntervalEstimate(one.rate.value)) for one in group.calibration)


def _add_distances(
    found: ScoreAudit, scores: Scores, counts: Counts, reference: str, settings: Mapping[str, Any], intervals: bool
) -> None:
    few = {} if intervals else {"draws": FEWEST_DRAWS}
    found.metrics |= distances(scores, reference, level=settings["level"], seed=settings["seed"], **few)
    pair = farthest_groups(scores)
    if pair is not None:
        means = [float((values * weights).sum() / weights.sum()) for values, weights in map(scores.of_group, pair)]
        if means[0] < means[1]:
            pair, means = (pair[1], pair[0]), means[::-1]
        found.pairs["w1"] = _pair("mean_score", pair, means.__getitem__, counts)


def _add_auc(found: ScoreAudit, ranked: Ranked, counts: Counts, large: Tensor, settings: Mapping[str, Any]) -> None:
    measured = auc(ranked)
    for group, estimate in zip(found.groups, auc_intervals(measured, settings["level"]), strict=True):
        group.auc = estimate
    found.metrics["auc_difference"], pair = auc_difference(
        ranked._replace(examples=ranked.examples * large), measured, **settings
    )
    if pair is not None:
        found.pairs["auc_difference"] = _pair("auc", pair, lambda side: float(measured.value[pair[side]]), counts)
    for i in _largest(counts, MAX_CURVES):
        found.groups[i].roc = ranked.curve(i)


def _add_curves(
    found: ScoreAudit, score: Tensor, labels: Tensor, groups: Tensor, weights: Tensor | None, counts: Counts,
    level: float,
) -> None:  # fmt: skip
    kept = _largest(counts, MAX_CURVES)
    number = torch.full((len(counts.names),), -1)
    number[torch.tensor(kept)] = torch.arange(len(kept))
    own = number[groups]
    inside = own >= 0
    w = None if weights is None else weights[inside]
    found.bins, shares = histograms(score[inside], own[inside], w, len(kept))
    bins = calibration(score[inside], labels[inside], own[inside], w, len(kept), level)
    for i, share, calibrated in zip(kept, shares, bins, strict=True):
        found.groups[i].histogram, found.groups[i].calibration = share, calibrated


def _add_losses(
    found: ScoreAudit, score: Tensor, labels: Tensor, groups: Tensor, counts: Counts, large: Tensor, reference: str,
    named: Mapping[str, Any], settings: Mapping[str, Any],
) -> None:  # fmt: skip
    losses = _compared_only(Losses.of(_cross_entropy(score, labels), groups, **named), large)
    found.metrics |= loss_gaps(losses, reference, **settings)
    _add_pair(found, "largest_loss_gap", "loss", losses, counts)
    for group, estimate in zip(found.groups, group_loss_intervals(losses, **settings), strict=True):
        group.loss = estimate
    off = _compared_only(Losses.of(score - labels.double(), groups, **named), large)
    found.metrics["calibration_difference"] = loss_gaps(off, reference, **settings)["largest_loss_gap"]
    _add_pair(found, "calibration_difference", "calibration_gap", off, counts)
    for group, estimate in zip(found.groups, group_loss_intervals(off, **settings), strict=True):
        group.calibration_gap = estimate


def _compared_only(losses: Losses, large: Tensor) -> Losses:
    """Gaps skip groups with few examples: none are counted of those that are not compared."""
    return replace(losses, examples=losses.examples * large)


def _add_pair(found: ScoreAudit, metric: str, of: str, losses: Losses, counts: Counts) -> None:
    usable = ((losses.examples >= FEWEST) & (losses.weight > 0)).nonzero().flatten()
    if len(usable) < 2:
        return
    mean = losses.mean[usable]
    pair = int(usable[int(mean.argmax())]), int(usable[int(mean.argmin())])
    found.pairs[metric] = _pair(of, pair, lambda side: float(losses.mean[pair[side]]), counts)


def _pair(of: str, pair: Sequence[int], value: Callable[[int], float], counts: Counts) -> GroupPair:
    sizes = counts.sizes()
    high, low = ((counts.names[i], value(side), int(sizes[i])) for side, i in enumerate(pair))
    return GroupPair(of, *high, *low)


def _largest(counts: Counts, most: int) -> list[int]:
    """The groups with the most examples, in their order."""
    order = counts.sizes().argsort(descending=True, stable=True)[:most]
    return sorted(order.tolist())


def _cross_entropy(score: Tensor, y: Tensor) -> Tensor:
    """Per-example; scores of exactly 0 and 1 count as 1e-7 from there, so that one certain mistake is not infinite."""
    p = score.clamp(1e-7, 1 - 1e-7)
    return torch.nn.functional.binary_cross_entropy(p, y.double(), reduction="none")
