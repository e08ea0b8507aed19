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

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from fairbound.columns._vectors import as_binary, same_length
from fairbound.metrics._counts import NAMES, Counts, examples_in_groups
from fairbound.metrics._intervals import (
    DRAWS,
    FEWEST,
    UNDEFINED,
    IntervalEstimate,
    check_level,
    draws_for,
    estimates,
    largest,
    resampled_means,
    spread,
    wilson,
)

FEWEST_OF_CLASS = 5  # with label 1, and with label 0, in a group whose AUC is compared
MAX_POINTS = 101  # of a curve that is drawn
MAX_VALUES = 60  # whole-numbered scores from lowest to highest that have bins of their own
CALIBRATION_BINS = 10
HISTOGRAM_BINS = 40


class Ranked(NamedTuple):
    """Examples in cells of equal group and score, in this order."""

    names: tuple[str, ...]
    group: Tensor  # (cells,)
    weight: Tensor  # (2, cells) sums of weights, of label 0 and of label 1
    squares: Tensor  # (2, cells) sums of squared weights
    examples: Tensor  # (2, groups)

    @staticmethod
    def of(
        scores: Any, labels: Any, groups: Any, *, weights: Any = None, names: Sequence[str] = ()
    ) -> Ranked:
        """Of some examples; groups numbered 0, 1, ... (-1: in no group)."""
        g_all, y_all = torch.as_tensor(groups), as_binary(labels, "labels")
        same_length(groups=g_all, labels=y_all)
        y = y_all[g_all >= 0].cpu()
        s, g, w, names = examples_in_groups(scores, groups, weights, names, "scores")
        order = torch.from_numpy(np.lexsort((s.numpy(), g.numpy())))
        s, g, w, y = s[order], g[order], w[order], y[order]
        new = torch.ones(len(s), dtype=torch.bool)
        new[1:] = (s[1:] != s[:-1]) | (g[1:] != g[:-1])
        cell = new.cumsum(0) - 1
        cells, size = int(new.sum()), len(names)
        parts = [
            torch.bincount(2 * cell + y, part, minlength=2 * cells).reshape(cells, 2).T
            for part in (w, w.square())
        ]
        counts = torch.bincount(2 * g + y, (w > 0).double(), minlength=2 * size).reshape(size, 2).T
        return Ranked(names, g[new], parts[0], parts[1], counts.long())

    def total(self, part: Tensor) -> Tensor:
        """(groups,) sums over the cells of each group."""
        return torch.bincount(self.group, part, minlength=len(self.names))

    def before(self, part: Tensor) -> Tensor:
        """(cells,) sums over the cells of the same group with lower scores."""
        running = part.cumsum(0) - part
        starts = torch.ones(len(part), dtype=torch.bool)
        starts[1:] = self.group[1:] != self.group[:-1]
        return running - running[starts][starts.cumsum(0) - 1]

    def curve(self, g: int) -> tuple[tuple[float, float], ...]:
        """(false positive rate, true positive rate) of group g for thresholds from high to low, at
        most MAX_POINTS."""
        start, end = (int(torch.searchsorted(self.group, i)) for i in (g, g + 1))
        weights = self.weight[:, start:end].flip(1)
        totals = weights.sum(1)
        if bool((totals <= 0).any()):
            return ()
        points = torch.cat(
            [torch.zeros(2, 1, dtype=weights.dtype), weights.cumsum(1) / totals.unsqueeze(1)], 1
        ).T
        shown = (
            torch.linspace(0, len(points) - 1, min(MAX_POINTS, len(points)), dtype=torch.float64)
            .round()
            .long()
        )
        return tuple((fpr, tpr) for fpr, tpr in points[shown].tolist())


class Auc(NamedTuple):
    """AUC of every group."""

    value: Tensor  # (groups,) 0 where undefined
    error: Tensor  # (groups,) DeLong's standard error
    defined: Tensor  # (groups,) whether there are examples of both labels
    freedom: Tensor  # (groups,) effective examples of the smaller class - 1


def auc(ranked: Ranked) -> Auc:
    """AUC of every group with its standard error.

    >>> areas = auc(Ranked.of([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], [0, 0, 0, 0]))
    >>> areas.value.tolist()
    [0.75]
    """
    (negative, positive), tiny = ranked.weight, torch.finfo(ranked.weight.dtype).tiny
    no, yes = (ranked.total(part) for part in (negative, positive))
    defined = (no > 0) & (yes > 0)
    no_of, yes_of = (part.clamp(min=tiny)[ranked.group] for part in (no, yes))
    # of the positives in a cell, among the negatives
    v10 = (ranked.before(negative) + negative / 2) / no_of
    v01 = 1 - (ranked.before(positive) + positive / 2) / yes_of
    value = torch.where(defined, ranked.total(positive * v10) / yes.clamp(min=tiny), 0.0)
    off, effective = value[ranked.group], []
    variance = torch.zeros_like(value)
    for total, squares, placed in ((yes, ranked.squares[1], v10), (no, ranked.squares[0], v01)):
        n = total.square() / ranked.total(squares).clamp(min=tiny)
        scatter = ranked.total(squares * (placed - off).square()) / total.square().clamp(min=tiny)
        variance += scatter * n / (n - 1).clamp(min=1e-9)
        effective.append(n)
    fewer = torch.minimum(*effective)
    return Auc(
        value,
        torch.where(defined & (fewer > 1), variance, 0.0).sqrt(),
        defined,
        (fewer - 1).clamp(min=0),
    )


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
    return estimates(
        value, (low.minimum(value), high.maximum(value)), areas.defined, areas.freedom > 0
    )


def auc_difference(
    ranked: Ranked, areas: Auc, *, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> tuple[IntervalEstimate, tuple[int, int] | None]:
    """Largest minus smallest AUC, and the two groups. Groups with fewer than FEWEST examples, or
    FEWEST_OF_CLASS of a label, are skipped."""
    enough = (
        (ranked.examples.sum(0) >= FEWEST)
        & (ranked.examples.amin(0) >= FEWEST_OF_CLASS)
        & areas.defined
    )
    usable = (enough & (areas.error > 0)).nonzero().flatten()
    if len(usable) < 2:
        return UNDEFINED, None
    value = areas.value[usable]
    count, rng = draws_for(len(value), draws), np.random.default_rng(seed)
    low, high = largest(
        [resampled_means(value, areas.error[usable], areas.freedom[usable], count, rng)], level
    )
    pair = int(usable[int(value.argmax())]), int(usable[int(value.argmin())])
    return IntervalEstimate.within(float(spread(value)), (low, min(high, 1.0))), pair


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
    score: Tensor, g: Tensor, weights: Tensor | None, groups: int, bins: int = HISTOGRAM_BINS
) -> tuple[tuple[float, ...], list[tuple[float, ...]]]:
    """Edges, and the share of each group's weight in each bin; a bin holds its left edge, the last
    one both."""
    edges = bin_edges(score, bins)
    bins = len(edges) - 1
    at = ((score - edges[0]) / (edges[-1] - edges[0]) * bins).long().clamp(0, bins - 1)
    table = (
        torch.bincount(g * bins + at, weights, minlength=groups * bins)
        .double()
        .reshape(groups, bins)
    )
    shares = table / table.sum(1, keepdim=True).clamp(min=torch.finfo(table.dtype).tiny)
    return tuple(edges.tolist()), [tuple(row) for row in shares.tolist()]


class CalibrationBin(NamedTuple):
    """Examples of a group whose scores are in one bin."""

    score: float  # mean
    rate: IntervalEstimate  # share with label 1
    examples: int


def calibration(
    score: Tensor,
    labels: Tensor,
    g: Tensor,
    weights: Tensor | None,
    groups: int,
    level: float = 0.95,
) -> list[tuple[CalibrationBin, ...]]:
    """The bins of each group that hold examples, from low to high scores; intervals are
    Wilson's."""
    edges = bin_edges(score, CALIBRATION_BINS)
    bins = len(edges) - 1
    # an edge belongs to the bin below, as in scikit-learn
    cell = g * bins + torch.searchsorted(edges[1:-1], score)
    names = [str(i) for i in range(groups * bins)]
    counts = Counts.of(labels, torch.zeros_like(labels), cell, weights=weights, names=names)
    rates, at = counts.rates(), NAMES.index("base_rate")
    w = torch.ones_like(score) if weights is None else weights
    sums = [torch.bincount(cell, part, minlength=len(names)) for part in (w * score, w)]
    mean = sums[0] / sums[1].clamp(min=torch.finfo(score.dtype).tiny)
    means = (mean.round() if whole_numbers(score) else mean).tolist()
    shares = estimates(
        rates.values[at], wilson(rates.values[at], rates.trials[at], level), rates.defined[at]
    )
    every = [
        CalibrationBin(*each) for each in zip(means, shares, counts.sizes().tolist(), strict=True)
    ]
    return [
        tuple(each for each in every[k * bins : (k + 1) * bins] if each.rate.value is not None)
        for k in range(groups)
    ]
