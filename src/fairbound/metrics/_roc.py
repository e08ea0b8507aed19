"""ROC curves, AUC and calibration by group.

AUC is P(score of a positive > score of a negative) + P(equal) / 2, weighted where examples are. Its
variance is DeLong's: that of the placements V10 (of each positive among the negatives) and V01 (of
each negative among the positives), so that ties and any distribution of scores are allowed.
Intervals are normal on the scale log(A / (1 - A)); where all positives lie above all negatives the
estimated variance is 0, and Wilson's interval of n out of n, with the smaller class as n, stands
in. Calibration compares P(y = 1 | score in a bin) with the mean score there: equal bins as in
scikit-learn's `calibration_curve`, or one bin for each whole-numbered score.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from fairbound.metrics._counts import rates_of
from fairbound.metrics._intervals import (
    DRAWS,
    FEWEST,
    UNDEFINED,
    IntervalEstimate,
    check_level,
    estimates,
    largest_of_means,
    wilson,
)
from fairbound.metrics._scores import Scores

FEWEST_OF_CLASS = 5  # with label 1, and with label 0, in a group whose AUC is compared
MAX_CURVE_POINTS = 101  # of a curve that is drawn
MAX_VALUES = 60  # whole-numbered scores from lowest to highest that have bins of their own
CALIBRATION_BINS = 10
SCORE_BINS = 40


def roc_curve(scores: Scores, group: int) -> tuple[tuple[float, float], ...]:
    """(false positive rate, true positive rate) of a group for thresholds from high to low, at most
    MAX_CURVE_POINTS; empty without both labels."""
    weights = scores.weights[:, scores.cells(group)].flip(1)
    totals = weights.sum(1, keepdim=True)
    if bool((totals <= 0).any()):
        return ()
    points = torch.cat([torch.zeros(2, 1, dtype=weights.dtype), weights.cumsum(1) / totals], 1).T
    count = min(MAX_CURVE_POINTS, len(points))
    shown = torch.linspace(0, len(points) - 1, count, dtype=torch.float64)
    return tuple((fpr, tpr) for fpr, tpr in points[shown.round().long()].tolist())


class Auc(NamedTuple):
    """AUC of every group."""

    value: Tensor  # (groups,) 0 where undefined
    error: Tensor  # (groups,) DeLong's standard error
    defined: Tensor  # (groups,) whether there are examples of both labels
    freedom: Tensor  # (groups,) effective examples of the smaller class - 1


def auc(scores: Scores) -> Auc:
    """AUC of every group with its standard error.

    >>> areas = auc(Scores.of([0.1, 0.4, 0.35, 0.8], [0, 0, 0, 0], [0, 0, 1, 1]))
    >>> areas.value.tolist()
    [0.75]
    """
    (negative, positive), tiny = scores.weights, torch.finfo(scores.weights.dtype).tiny
    no, yes = (scores.total(part) for part in (negative, positive))
    defined = (no > 0) & (yes > 0)
    no_of, yes_of = (part.clamp(min=tiny)[scores.groups] for part in (no, yes))
    # of the positives in a cell, among the negatives
    v10 = (scores.before(negative) + negative / 2) / no_of
    v01 = 1 - (scores.before(positive) + positive / 2) / yes_of
    value = torch.where(defined, scores.total(positive * v10) / yes.clamp(min=tiny), 0.0)
    off, effective = value[scores.groups], []
    variance = torch.zeros_like(value)
    for total, squares, placed in ((yes, scores.squares[1], v10), (no, scores.squares[0], v01)):
        n = total.square() / scores.total(squares).clamp(min=tiny)
        scatter = scores.total(squares * (placed - off).square()) / total.square().clamp(min=tiny)
        variance += scatter * n / (n - 1).clamp(min=1e-9)
        effective.append(n)
    fewer = torch.minimum(*effective)
    error = torch.where(defined & (fewer > 1), variance, 0.0).sqrt()
    return Auc(value, error, defined, (fewer - 1).clamp(min=0))


def auc_intervals(areas: Auc, level: float = 0.95) -> list[IntervalEstimate]:
    """AUC of every group with its interval; one example of a class gives a value without an
    interval."""
    check_level(level)
    z, value = ndtri((1 + level) / 2), areas.value
    inner = value.clamp(1e-9, 1 - 1e-9)
    half = z * areas.error / (inner * (1 - inner))
    ends = torch.stack([torch.sigmoid(torch.logit(inner) + sign * half) for sign in (-1, 1)])
    apart = areas.error == 0
    low, high = torch.where(apart, torch.stack(wilson(value, areas.freedom + 1, level)), ends)
    return estimates(value, (low, high), areas.defined, areas.freedom > 0)


def auc_difference(
    scores: Scores, areas: Auc, *, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> tuple[IntervalEstimate, tuple[int, int] | None]:
    """Largest minus smallest AUC, and the two groups. Groups with fewer than FEWEST examples, or
    FEWEST_OF_CLASS of a label, are skipped."""
    examples = torch.stack([scores.total(part) for part in scores.examples])
    enough = (examples.sum(0) >= FEWEST) & (examples.amin(0) >= FEWEST_OF_CLASS)
    usable = (enough & areas.defined & (areas.error > 0)).nonzero().flatten()
    if len(usable) < 2:
        return UNDEFINED, None
    value, error, _, freedom = (part[usable] for part in areas)
    rng = np.random.default_rng(seed)
    gap, high, low = largest_of_means(value, error, freedom, draws, rng, level)
    gap = gap._replace(high=min(gap.high or 1.0, 1.0))
    return gap, (int(usable[high]), int(usable[low]))


# Bins of scores -----------------------------------------------------------------------------------


def whole_numbers(score: Tensor) -> bool:
    """Whether scores are whole numbers, of which there are few: each has a bin of its own. 0 and 1
    alone are not."""
    low, high = float(score.min()), float(score.max())
    return 1 < high - low < MAX_VALUES and bool((score == score.round()).all())


def bin_edges(score: Tensor, bins: int) -> Tensor:
    """Equal bins over [0, 1], or over the range of scores elsewhere; around each of few whole
    numbers.

    >>> bin_edges(torch.tensor([1.0, 2.0, 3.0]), 40).tolist()
    [0.5, 1.5, 2.5, 3.5]
    """
    low, high = float(score.min()), float(score.max())
    if whole_numbers(score):
        return torch.arange(low - 0.5, high + 1, dtype=torch.float64)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    return torch.linspace(low, high if high > low else low + 1.0, bins + 1, dtype=torch.float64)


def histograms(
    scores: Scores, bins: int = SCORE_BINS
) -> tuple[tuple[float, ...], list[tuple[float, ...]]]:
    """Edges, and the share of each group's weight in each bin; a bin holds its left edge, the last
    one both."""
    edges = bin_edges(scores.values, bins)
    bins = len(edges) - 1
    place = ((scores.values - edges[0]) / (edges[-1] - edges[0]) * bins).long().clamp(0, bins - 1)
    table = scores.binned(place, bins, scores.weights.sum(0))
    shares = table / table.sum(1, keepdim=True).clamp(min=torch.finfo(table.dtype).tiny)
    return tuple(edges.tolist()), [tuple(row) for row in shares.tolist()]


class CalibrationBin(NamedTuple):
    """Examples of a group whose scores are in one bin."""

    score: float  # mean
    rate: IntervalEstimate  # share with label 1
    examples: int


def calibration_by_group(scores: Scores, level: float = 0.95) -> list[tuple[CalibrationBin, ...]]:
    """The bins of each group that hold examples, from low to high scores; intervals are
    Wilson's."""
    edges = bin_edges(scores.values, CALIBRATION_BINS)
    bins = len(edges) - 1
    # an edge belongs to the bin below, as in scikit-learn
    place = torch.searchsorted(edges[1:-1], scores.values)

    def sums(part: Tensor) -> Tensor:
        return scores.binned(place, bins, part).flatten()

    (no, yes), (squares_no, squares_yes) = (
        map(sums, part) for part in (scores.weights, scores.squares)
    )
    rates = rates_of(yes, no + yes, squares_yes, squares_no)
    weight = scores.weights.sum(0)
    mean = sums(weight * scores.values) / sums(weight).clamp(min=torch.finfo(weight.dtype).tiny)
    means = mean.round() if whole_numbers(scores.values) else mean
    shares = estimates(rates.values, wilson(rates.values, rates.trials, level), rates.defined)
    examples = sums(scores.examples.sum(0)).long()
    every = [*map(CalibrationBin, means.tolist(), shares, examples.tolist())]
    return [
        tuple(each for each in every[k * bins : (k + 1) * bins] if each.rate.value is not None)
        for k in range(len(scores.names))
    ]
