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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from fairbound.metrics._counts import examples_in_groups, numbered_reference
from fairbound.metrics._intervals import (
    FEWEST,
    UNDEFINED,
    IntervalEstimate,
    check_level,
    quantile,
    quantiles,
)

GRID = 200  # bins of the grid on which examples are resampled, at quantiles of the scores
_GRID = torch.linspace(0, 1, GRID + 1, dtype=torch.float64)
BINS = 50  # of the paper's histograms
DRAWS = 500
MAX_COMPARED = 40_000_000  # numbers in all: many pairs of groups get fewer draws
MIN_DRAWS = 100
MAX_PAIRED = 20  # groups whose pairs are compared one by one
MOST_GROUPS = 1_000  # that are compared at all


class Distinct(NamedTuple):
    """The different scores of a group in ascending order, and sums over the examples that have
    them: far fewer numbers where scores are rounded, and never more."""

    values: Tensor  # (scores,)
    examples: Tensor  # (scores,)
    weights: Tensor  # (scores,) sums of weights
    squares: Tensor  # (scores,) sums of squared weights


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores by group, kept example by example: distances need them all.

    >>> two = Scores.of([0.0, 1.0, 0.5, 1.5], [0, 0, 1, 1])
    >>> w1(two, 0, 1)
    0.5
    """

    names: tuple[str, ...]
    values: Tensor  # (examples,) float64
    groups: Tensor  # (examples,)
    weights: Tensor  # (examples,)

    @staticmethod
    def of(scores: Any, groups: Any, *, weights: Any = None, names: Sequence[str] = ()) -> Scores:
        """Of some examples; groups numbered 0, 1, ... (-1: in no group, skipped)."""
        values, g, w, names = examples_in_groups(scores, groups, weights, names, "scores")
        return Scores(names, values, g, w)

    def present(self, fewest: int = 1) -> list[int]:
        """The groups that have weight, and at least so many examples."""
        total = torch.bincount(self.groups, self.weights, minlength=len(self.names))
        examples = torch.bincount(self.groups, minlength=len(self.names))
        return ((total > 0) & (examples >= fewest)).nonzero().flatten().tolist()

    def of_group(self, g: int) -> tuple[Tensor, Tensor]:
        """Scores and weights of one group."""
        values, weights = self._by_group
        return values[g], weights[g]

    @cached_property
    def found_w1(self) -> dict[tuple[int, int], float]:
        """Distances of pairs of groups that were computed before."""
        return {}

    @cached_property
    def _distinct(self) -> dict[int, Distinct]:
        return {}

    def distinct(self, g: int) -> Distinct:
        if g not in self._distinct:
            values, w = self.of_group(g)
            different, at = values.unique(return_inverse=True)
            sums = (
                torch.bincount(at, part, minlength=len(different)) for part in (None, w, w.square())
            )
            self._distinct[g] = Distinct(different, *sums)
        return self._distinct[g]

    @cached_property
    def _by_group(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Sorted by group once, since distances compare every pair."""
        order = self.groups.argsort(stable=True)
        sizes = torch.bincount(self.groups, minlength=len(self.names)).tolist()
        return self.values[order].split(sizes), self.weights[order].split(sizes)


def w1(scores: Scores, a: int, b: int) -> float:
    """Area between the distribution functions of groups a and b."""
    from scipy.stats import wasserstein_distance  # loads slowly, and only scores need it

    if (a, b) not in scores.found_w1:
        x, y = scores.distinct(a), scores.distinct(b)
        vectors = (part.numpy() for part in (x.values, y.values, x.weights, y.weights))
        scores.found_w1[a, b] = float(wasserstein_distance(*vectors))
    return scores.found_w1[a, b]


def wd(scores: Scores, reference: int, other: int) -> float | None:
    """The paper's Wd; None where no score of the other group lies in the reference group's
    range."""
    edges = _histogram_edges(scores, reference)
    masses = [_histogram(scores.distinct(g), edges)[0] for g in (reference, other)]
    if any(float(mass.sum()) == 0 for mass in masses):
        return None
    return float(_squared_w2(masses[0], masses[1], edges))


def distances(
    scores: Scores,
    reference: str | None = None,
    *,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, IntervalEstimate]:
    """`w1`: the largest over pairs of groups; `wd`: the largest between the reference group and
    another. Groups with fewer than FEWEST examples are skipped: an example resamples to itself, so
    that their noise would be missing.
    """
    return {
        "w1": largest_w1(scores, level=level, draws=draws, seed=seed),
        "wd": largest_wd(scores, reference, level=level, draws=draws, seed=seed),
    }


def farthest_groups(scores: Scores) -> tuple[int, int] | None:
    """The two groups with the largest W1, exact for few groups, else on the grid of the scores."""
    present = scores.present(FEWEST)
    if not 2 <= len(present) <= MOST_GROUPS:
        return None
    edges = _grid_edges(scores, present)
    if len(edges) == 1:
        return present[0], present[1]
    if len(present) <= MAX_PAIRED:
        return max(combinations(present, 2), key=lambda pair: w1(scores, *pair))
    exact = torch.stack([_cumulative(_histogram(scores.distinct(g), edges)[0]) for g in present])
    apart = torch.cdist(exact * edges.diff(), exact * edges.diff(), p=1)
    a, b = divmod(int(apart.argmax()), len(present))
    return present[a], present[b]


def largest_w1(
    scores: Scores, *, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> IntervalEstimate:
    """The largest W1 of two groups; undefined for more than MOST_GROUPS, whose pairs would be too
    many."""
    check_level(level)
    present = scores.present(FEWEST)
    if not 2 <= len(present) <= MOST_GROUPS:
        return UNDEFINED
    edges = _grid_edges(scores, present)
    if len(edges) == 1:  # all scores are the same
        return IntervalEstimate(0.0, 0.0, 0.0)
    draws = min(draws, max(MIN_DRAWS, MAX_COMPARED // (len(present) ** 2 * GRID)))
    rng = np.random.default_rng(seed)
    masses = {g: _histogram(scores.distinct(g), edges) for g in present}
    exact = torch.stack([_cumulative(mass[0]) for mass in masses.values()])  # (groups, bins)
    if len(present) > MAX_PAIRED:
        return _w1_of_many(scores, present, masses, exact, edges.diff(), level, rng)
    drawn = torch.stack([_noisy(exact[i], masses[g], draws, rng) for i, g in enumerate(present)])
    pairs = list(combinations(range(len(present)), 2))
    each = 1 - (1 - level) / len(pairs)  # all pairs together, by Bonferroni
    intervals = []
    for a, b in pairs:
        value, D = w1(scores, present[a], present[b]), exact[a] - exact[b]
        intervals.append(_w1_interval(value, D, drawn[a] - drawn[b] - D, edges.diff(), each))
    value, low, high = (max(part) for part in zip(*intervals, strict=True))
    return IntervalEstimate(value, low, high)


def _grid_edges(scores: Scores, groups: Sequence[int]) -> Tensor:
    """Quantiles of these groups' scores; of very many, of some thousands evenly from the sorted
    ones, ends included."""
    values, examples = (
        torch.cat(part) for part in list(zip(*map(scores.distinct, groups), strict=True))[:2]
    )
    values, order = values.sort()
    upto = examples[order].cumsum(0)  # how many examples have at most this score
    size = int(upto[-1])
    places = torch.linspace(0, size - 1, min(size, 100 * GRID), dtype=torch.float64).round().long()
    edges: Tensor = torch.quantile(
        values[torch.searchsorted(upto, places, right=True)], _GRID
    ).unique()
    return edges


def _noisy(
    exact: Tensor, mass: tuple[Tensor, Tensor], draws: int, rng: np.random.Generator
) -> Tensor:
    """(draws, bins) resampled distribution functions, their noise scaled up as a variance with n -
    1 is."""
    effective = float(mass[0].sum() ** 2 / mass[1].sum())
    return exact + (_cumulative(_gamma(*mass, draws, rng)) - exact) * math.sqrt(
        effective / max(effective - 1, 1.0)
    )


def _w1_interval(
    value: float, D: Tensor, noise: Tensor, widths: Tensor, level: float
) -> tuple[float, float, float]:
    far = (noise.abs() * widths).sum(-1)
    q = quantile(far, level)
    if level > 0.99:  # too few draws for the far tail
        q = max(q, float(far.mean() + ndtri(level) * far.std()))
    if value > q:
        q = ndtri((1 + level) / 2) * float((noise * D.sign() * widths).sum(-1).std())
    return value, max(0.0, value - q), value + q


def _w1_of_many(
    scores: Scores,
    present: Sequence[int],
    masses: Mapping[int, tuple[Tensor, Tensor]],
    exact: Tensor,
    widths: Tensor,
    level: float,
    rng: np.random.Generator,
) -> IntervalEstimate:
    """By the triangle inequality |W(F^_i, F^_j) - W(F_i, F_j)| <= W(F^_i, F_i) + W(F^_j, F_j): one
    radius a group."""
    each = 1 - (1 - level) / len(present)
    radius = torch.zeros(len(present), dtype=torch.float64)
    for i, g in enumerate(present):
        far = ((_noisy(exact[i], masses[g], MIN_DRAWS, rng) - exact[i]).abs() * widths).sum(-1)
        radius[i] = max(quantile(far, each), float(far.mean() + ndtri(each) * far.std()))
    top, low, high = (-1.0, 0, 0), 0.0, 0.0
    for i in range(len(present) - 1):
        distance = ((exact[i] - exact[i + 1 :]).abs() * widths).sum(-1)
        both = radius[i] + radius[i + 1 :]
        top = max(top, (float(distance.max()), i, i + 1 + int(distance.argmax())))
        low, high = (
            max(low, float((distance - both).max())),
            max(high, float((distance + both).max())),
        )
    return IntervalEstimate.within(w1(scores, present[top[1]], present[top[2]]), (low, high))


def largest_wd(
    scores: Scores,
    reference: str | None = None,
    *,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> IntervalEstimate:
    """The largest Wd between the reference group (the largest unless given) and another."""
    check_level(level)
    sizes = torch.bincount(scores.groups, minlength=len(scores.names))
    present = scores.present(FEWEST)
    if reference is None:
        at = max(present, key=lambda g: int(sizes[g]), default=-1)
    else:
        at = numbered_reference(scores.names, reference)
    others = [g for g in present if g != at]
    if at not in present or not 1 <= len(others) < MOST_GROUPS:
        return UNDEFINED
    draws = min(draws, max(MIN_DRAWS, MAX_COMPARED // (100 * BINS * len(others))))
    edges = _histogram_edges(scores, at)
    rng = np.random.default_rng(seed)
    base = _histogram(scores.distinct(at), edges)
    base_drawn = _gamma(*base, draws, rng)
    each = 1 - (1 - level) / len(others)
    intervals = []
    for g in others:
        value = wd(scores, at, g)
        if value is None:
            continue
        mass = _histogram(scores.distinct(g), edges)
        drawn = _gamma(*mass, draws, rng)
        D = _cumulative(base[0]) - _cumulative(mass[0])
        noise = _cumulative(base_drawn) - _cumulative(drawn) - D
        # equality is not excluded
        equal = float(D.abs().sum()) <= quantile(noise.abs().sum(-1), each)
        stars = _squared_w2(base_drawn, drawn, edges)
        low, high = quantiles(stars, each)
        intervals.append((value, 0.0 if equal else min(low, value), max(high, value)))
    return (
        IntervalEstimate(*(max(part) for part in zip(*intervals, strict=True)))
        if intervals
        else UNDEFINED
    )


def _histogram_edges(scores: Scores, reference: int) -> Tensor:
    """Numpy's: BINS equal bins over the group's range, half a unit to each side where that is a
    point."""
    values = scores.distinct(reference).values
    low, high = float(values[0]), float(values[-1])
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    return torch.linspace(low, high, BINS + 1, dtype=torch.float64)


def _histogram(scores: Distinct, edges: Tensor) -> tuple[Tensor, Tensor]:
    """(bins,) sums of weights and of squared weights; a bin holds its left edge, the last one
    both."""
    inside = (scores.values >= edges[0]) & (scores.values <= edges[-1])
    at = (torch.searchsorted(edges, scores.values[inside], right=True) - 1).clamp(0, len(edges) - 2)
    parts = (scores.weights[inside], scores.squares[inside])
    return tuple(torch.bincount(at, part, minlength=len(edges) - 1) for part in parts)  # type: ignore[return-value]


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
