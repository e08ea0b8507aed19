"""Distances between the groups' score distributions: W1, and the paper's Wd.

- W1 of two groups is the area between their distribution functions, exact from the sorted scores.
- Wd is the squared 2-Wasserstein distance of 50-bin histograms whose bins span the reference
  group's range; scores of the other group outside that range are dropped, as numpy's histogram
  does: the number in the paper's results.

Intervals resample the examples: gamma weights (the Bayesian bootstrap) on a fine grid of the
scores. With D = F1 - F2, W1 is the seminorm h(D) = integral of abs(D), and noise alone makes it
positive. Where h(D^) is within the 95 % quantile q of h(D* - D^), equality is not excluded, and the
interval is h(D^) plus and minus q (at least 95 %). Beyond, W1 varies like the linear functional
integral of sign(D^) D, and the interval is normal with that functional's standard error. In
simulations (tests/metrics/test_coverage.py) the two together cover W1 from 0 to far away with 93 to
98 %. W1 itself is scipy's; it has no squared 2-Wasserstein distance of histograms, so Wd is
computed here.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from fairbound.metrics._counts import numbered_reference
from fairbound.metrics._intervals import (
    FEWEST,
    UNDEFINED,
    IntervalEstimate,
    check_level,
    percentile,
    quantile,
)
from fairbound.metrics._scores import Scores

W1_GRID = 200  # bins of the grid on which examples are resampled, at quantiles of the scores
_W1_GRID = torch.linspace(0, 1, W1_GRID + 1, dtype=torch.float64)
WD_BINS = 50  # of the paper's histograms
SCORE_DRAWS = 500
MAX_RESAMPLED = 40_000_000  # numbers in all: many pairs of groups get fewer draws
MIN_SCORE_DRAWS = 100
MAX_W1_PAIRED = 20  # groups whose pairs are compared one by one
MOST_GROUPS = 1_000  # that are compared at all


def w1(scores: Scores, a: int, b: int) -> float:
    """Area between the distribution functions of two groups.

    Args:
        scores: the scores of all groups.
        a: number of one group.
        b: number of the other one.

    >>> w1(Scores.of([0.0, 1.0, 0.5, 1.5], [0, 0, 1, 1]), 0, 1)
    0.5
    """
    from scipy.stats import wasserstein_distance  # loads slowly, and only scores need it

    sides, weights = (scores.cells(a), scores.cells(b)), scores.weights.sum(0)
    vectors = [part[side].numpy() for part in (scores.values, weights) for side in sides]
    return float(wasserstein_distance(*vectors))


def wd(scores: Scores, reference: int, other: int) -> float | None:
    """The paper's Wd; None where no score of the other group lies in the reference group's range.

    Args:
        scores: the scores of all groups.
        reference: number of the reference group, whose range the histograms span.
        other: number of the other group.
    """
    edges = _histogram_edges(scores, reference)
    mass = _histograms(scores, edges)[0]
    if float(mass[reference].sum()) == 0 or float(mass[other].sum()) == 0:
        return None
    return float(_squared_w2(mass[reference], mass[other], edges))


def largest_w1(
    scores: Scores, *, level: float = 0.95, draws: int = SCORE_DRAWS, seed: int = 0
) -> tuple[IntervalEstimate, tuple[int, int] | None]:
    """The largest W1 of two groups, and the two; undefined for more than MOST_GROUPS.

    Groups with fewer than FEWEST examples are skipped: an example resamples to itself, so that
    their noise would be missing.

    Args:
        scores: the scores of all groups.
        level: of the interval, for all pairs together.
        draws: resamples of every group; many groups get fewer.
        seed: of the resamples.
    """
    check_level(level)
    present = scores.present(FEWEST)
    if not 2 <= len(present) <= MOST_GROUPS:
        return UNDEFINED, None
    scores = scores.only(present)
    edges = _grid_edges(scores)
    if len(edges) == 1:  # all scores are the same
        return IntervalEstimate(0.0, 0.0, 0.0), (present[0], present[1])
    many = len(present) > MAX_W1_PAIRED
    draws = min(draws, max(MIN_SCORE_DRAWS, MAX_RESAMPLED // (len(present) ** 2 * W1_GRID)))
    mass, squares = _histograms(scores, edges)
    F, widths = _cumulative(mass), edges.diff()  # (groups, bins), (bins,)
    rng = np.random.default_rng(seed)
    noise = (
        _noise(F[i], mass[i], squares[i], MIN_SCORE_DRAWS if many else draws, rng)
        for i in range(len(present))
    )
    if many:
        each = 1 - (1 - level) / len(present)
        radius = [_upper((off.abs() * widths).sum(-1), each) for off in noise]
        return _w1_of_many(scores, F * widths, torch.tensor(radius, dtype=torch.float64), present)
    noises, pairs = list(noise), list(combinations(range(len(present)), 2))
    each = 1 - (1 - level) / len(pairs)  # all pairs together, by Bonferroni
    distances = [w1(scores, a, b) for a, b in pairs]
    low = high = 0.0
    for (a, b), value in zip(pairs, distances, strict=True):
        off = noises[a] - noises[b]
        q = _upper((off.abs() * widths).sum(-1), each)
        if value > q:
            signs = (F[a] - F[b]).sign()
            q = ndtri((1 + each) / 2) * float((off * signs * widths).sum(-1).std())
        low, high = max(low, value - q), max(high, value + q)
    value = max(distances)
    a, b = pairs[distances.index(value)]
    return IntervalEstimate(value, low, high), (present[a], present[b])


def _w1_of_many(
    scores: Scores, areas: Tensor, radius: Tensor, present: list[int]
) -> tuple[IntervalEstimate, tuple[int, int]]:
    """By the triangle inequality |W(F^_i, F^_j) - W(F_i, F_j)| <= W(F^_i, F_i) + W(F^_j, F_j): one
    radius a group. `areas` (groups, bins) are the distribution functions times the bins' widths."""
    apart = torch.cdist(areas, areas, p=1)
    a, b = divmod(int(apart.argmax()), len(present))
    i, j = torch.triu_indices(len(present), len(present), 1)
    both, apart = radius[i] + radius[j], apart[i, j]
    ends = max(0.0, float((apart - both).max())), float((apart + both).max())
    return IntervalEstimate.within(w1(scores, a, b), ends), (present[a], present[b])


def largest_wd(
    scores: Scores,
    reference: str | None = None,
    *,
    level: float = 0.95,
    draws: int = SCORE_DRAWS,
    seed: int = 0,
) -> IntervalEstimate:
    """The largest Wd between the reference group and another; groups with fewer than FEWEST
    examples are skipped.

    Args:
        scores: the scores of all groups.
        reference: name of the reference group; None: the largest one.
        level: of the interval, for all other groups together.
        draws: resamples of every group; many groups get fewer.
        seed: of the resamples.
    """
    check_level(level)
    present = scores.present(FEWEST)
    at = numbered_reference(scores.names, reference, scores.total(scores.examples.sum(0)))
    if at not in present or not 2 <= len(present) <= MOST_GROUPS:
        return UNDEFINED
    scores, at = scores.only(present), present.index(at)
    draws = min(draws, max(MIN_SCORE_DRAWS, MAX_RESAMPLED // (100 * WD_BINS * (len(present) - 1))))
    edges = _histogram_edges(scores, at)
    mass, squares = _histograms(scores, edges)
    rng = np.random.default_rng(seed)
    base_drawn = _gamma(mass[at], squares[at], draws, rng)
    each = 1 - (1 - level) / (len(present) - 1)
    intervals = []
    for g in range(len(present)):
        if g == at or float(mass[g].sum()) == 0:
            continue
        value = float(_squared_w2(mass[at], mass[g], edges))
        drawn = _gamma(mass[g], squares[g], draws, rng)
        D = _cumulative(mass[at]) - _cumulative(mass[g])
        noise = _cumulative(base_drawn) - _cumulative(drawn) - D
        interval = percentile(value, _squared_w2(base_drawn, drawn, edges), each)
        # equality is not excluded
        if float(D.abs().sum()) <= quantile(noise.abs().sum(-1), each):
            interval = interval._replace(low=0.0)
        intervals.append(interval)
    if not intervals:
        return UNDEFINED
    return IntervalEstimate(*(max(part) for part in zip(*intervals, strict=True)))


# Resampling ---------------------------------------------------------------------------------------


def _grid_edges(scores: Scores) -> Tensor:
    """Quantiles of the scores; of very many, of some thousands evenly from the sorted ones, ends
    included."""
    values, order = scores.values.sort()
    upto = scores.examples.sum(0)[order].cumsum(0)  # how many examples have at most this score
    size = int(upto[-1])
    places = (
        torch.linspace(0, size - 1, min(size, 100 * W1_GRID), dtype=torch.float64).round().long()
    )
    edges: Tensor = torch.quantile(
        values[torch.searchsorted(upto, places, right=True)], _W1_GRID
    ).unique()
    return edges


def _noise(
    F: Tensor, mass: Tensor, squares: Tensor, draws: int, rng: np.random.Generator
) -> Tensor:
    """(draws, bins) resampled distribution functions minus F, scaled up as a variance with n - 1
    is."""
    effective = float(mass.sum() ** 2 / squares.sum())
    scale = math.sqrt(effective / max(effective - 1, 1.0))
    return (_cumulative(_gamma(mass, squares, draws, rng)) - F) * scale


def _upper(far: Tensor, level: float) -> float:
    """The quantile of distances (draws,); normal where there are too few draws for the tail."""
    q = quantile(far, level)
    return max(q, float(far.mean() + ndtri(level) * far.std())) if level > 0.99 else q


def _histogram_edges(scores: Scores, reference: int) -> Tensor:
    """Numpy's: WD_BINS equal bins over the group's range, half a unit to each side where that is a
    point."""
    values = scores.values[scores.cells(reference)]
    low, high = float(values[0]), float(values[-1])
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    return torch.linspace(low, high, WD_BINS + 1, dtype=torch.float64)


def _histograms(scores: Scores, edges: Tensor) -> tuple[Tensor, Tensor]:
    """(groups, bins) sums of weights and of squared weights; a bin holds its left edge, the last
    one both."""
    bins = len(edges) - 1
    inside = (scores.values >= edges[0]) & (scores.values <= edges[-1])
    place = (torch.searchsorted(edges, scores.values, right=True) - 1).clamp(0, bins - 1)
    mass = scores.binned(place, bins, scores.weights.sum(0) * inside)
    return mass, scores.binned(place, bins, scores.squares.sum(0) * inside)


def _gamma(mass: Tensor, squares: Tensor, draws: int, rng: np.random.Generator) -> Tensor:
    """(draws, bins) masses with mean `mass` and variance `squares`: for unit weights,
    Gamma(count)."""
    there = mass > 0
    scale = squares[there] / mass[there]
    drawn = torch.zeros(draws, len(mass), dtype=mass.dtype)
    drawn[:, there] = (
        torch.from_numpy(rng.standard_gamma((mass[there] / scale).numpy(), (draws, len(scale))))
        * scale
    )
    return drawn


def _cumulative(mass: Tensor) -> Tensor:
    """Distribution function at the right edges."""
    total = mass.cumsum(-1)
    return total / total[..., -1:]


def _squared_w2(a: Tensor, b: Tensor, edges: Tensor) -> Tensor:
    """Squared 2-Wasserstein distance of masses (..., bins) at the bins' centers: the integral of
    the squared difference of the quantile functions, piecewise constant between the merged levels
    of both distribution functions.
    """
    centers = (edges[:-1] + edges[1:]) / 2
    Fa, Fb = _cumulative(a).contiguous(), _cumulative(b).contiguous()
    levels = torch.cat([Fa, Fb], -1).sort(-1).values
    before = torch.cat([torch.zeros_like(levels[..., :1]), levels[..., :-1]], -1)
    middle = (levels + before) / 2  # a point inside each piece, away from the steps
    at = [torch.searchsorted(F, middle.contiguous()).clamp(max=len(centers) - 1) for F in (Fa, Fb)]
    return ((levels - before) * (centers[at[0]] - centers[at[1]]).square()).sum(-1)
