"""Distances between the groups' score distributions: W1, and the paper's Wd.

- W1 of two groups is the area between their distribution functions, exact from the sorted scores.
- Wd is the squared 2-Wasserstein distance of 50-bin histograms whose bins span the reference group's range; scores of
  the other group outside that range are left out, as numpy's histogram does: the number in the paper's results.

Intervals resample the rows: gamma weights (the Bayesian bootstrap) on a fine grid of the scores. With D = F1 - F2, W1
is the seminorm h(D) = integral of abs(D), and noise alone makes it positive. Where h(D^) is within the 95 % quantile q
of h(D* - D^), equality is not excluded, and the interval is h(D^) plus and minus q (at least 95 %). Beyond, W1 varies
like the linear functional integral of sign(D^) D, and the interval is normal with that functional's standard error. In
simulations (tests/test_coverage.py) the two together cover W1 from 0 to far away with 93 to 98 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairbound.fairness.counts import as_numbers, as_vector, as_weights, group_names, same_length
from fairbound.fairness.intervals import UNDEFINED, Measured, normal_quantile, quantile, quantiles

GRID = 200  # bins of the grid on which rows are resampled
BINS = 50  # of the paper's histograms
DRAWS = 500
ROOM = 40_000_000  # numbers compared in all: many pairs of groups get fewer draws
FEWEST_DRAWS = 100
FEWEST = 10  # rows of a group that is compared


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores by group, kept row by row: distances need them all.

    >>> two = Scores.of([0.0, 1.0, 0.5, 1.5], [0, 0, 1, 1])
    >>> w1(two, 0, 1)
    0.5
    """

    names: tuple[str, ...]
    values: Tensor  # (rows,) float64
    groups: Tensor  # (rows,)
    weights: Tensor  # (rows,)

    @staticmethod
    def of(scores: Any, groups: Any, *, weights: Any = None, names: Sequence[str] = ()) -> Scores:
        """Of some rows; groups numbered 0, 1, ... (-1: in no group, left out)."""
        values, g = as_vector(scores).double().cpu(), as_numbers(groups).cpu()
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"{int((~torch.isfinite(values)).sum())} scores are NaN or infinite")
        w = torch.ones_like(values) if weights is None else as_weights(weights).cpu()
        same_length(scores=values, groups=g, weights=w)
        names = group_names(g, names)
        inside = g >= 0
        return Scores(tuple(names), values[inside], g[inside], w[inside])

    def __add__(self, other: Scores) -> Scores:
        """Both together, groups matched by name."""
        names = (*self.names, *(name for name in other.names if name not in self.names))
        renumber = torch.tensor([names.index(name) for name in other.names], dtype=torch.long)
        groups = renumber[other.groups] if other.names else other.groups
        parts = ((self.values, other.values), (self.groups, groups), (self.weights, other.weights))
        return Scores(names, *(torch.cat(pair) for pair in parts))

    def present(self, fewest: int = 1) -> list[int]:
        """The groups that have weight, and at least so many rows."""
        total = torch.bincount(self.groups, self.weights, minlength=len(self.names))
        rows = torch.bincount(self.groups, minlength=len(self.names))
        return ((total > 0) & (rows >= fewest)).nonzero().flatten().tolist()

    def of_group(self, g: int) -> tuple[Tensor, Tensor]:
        """Scores and weights of one group."""
        chosen = self.groups == g
        return self.values[chosen], self.weights[chosen]


def w1(scores: Scores, a: int, b: int) -> float:
    """Area between the distribution functions of groups a and b."""
    (x, u), (y, v) = scores.of_group(a), scores.of_group(b)
    points = torch.cat([x, y])
    steps = torch.cat([u / u.sum(), -v / v.sum()])
    order = points.argsort()
    difference = steps[order].cumsum(0)[:-1]
    return float((difference.abs() * points[order].diff()).sum())


def wd(scores: Scores, reference: int, other: int) -> float | None:
    """The paper's Wd; None where no score of the other group lies in the reference group's range."""
    edges = _histogram_edges(scores, reference)
    masses = [_histogram(*scores.of_group(g), edges)[0] for g in (reference, other)]
    if any(float(mass.sum()) == 0 for mass in masses):
        return None
    return float(_squared_w2(masses[0], masses[1], edges))


def distances(
    scores: Scores, reference: str | None = None, *, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> dict[str, Measured]:  # fmt: skip
    """`w1`: the largest over pairs of groups; `wd`: the largest between the reference group and another. Groups with
    fewer than FEWEST rows are left out: a row resamples to itself, so that their noise would be missing."""
    return {
        "w1": largest_w1(scores, level=level, draws=draws, seed=seed),
        "wd": largest_wd(scores, reference, level=level, draws=draws, seed=seed),
    }


def largest_w1(scores: Scores, *, level: float = 0.95, draws: int = DRAWS, seed: int = 0) -> Measured:
    """The largest W1 of two groups."""
    present = scores.present(FEWEST)
    if len(present) < 2:
        return UNDEFINED
    edges = torch.linspace(float(scores.values.min()), float(scores.values.max()), GRID + 1, dtype=torch.float64)
    width = float(edges[1] - edges[0])
    if width == 0:  # everyone has the same score
        return Measured(0.0, 0.0, 0.0)
    pairs = list(combinations(present, 2))
    draws = min(draws, max(FEWEST_DRAWS, ROOM // (len(pairs) * GRID)))
    rng = np.random.default_rng(seed)
    masses = {g: _histogram(*scores.of_group(g), edges) for g in present}
    drawn = {g: _cumulative(_gamma(*mass, draws, rng)) for g, mass in masses.items()}
    exact = {g: _cumulative(mass[0]) for g, mass in masses.items()}
    each = 1 - (1 - level) / len(pairs)  # all pairs together, by Bonferroni
    found = []
    for a, b in pairs:
        noise = (drawn[a] - drawn[b]) - (exact[a] - exact[b])
        found.append(_w1_interval(w1(scores, a, b), exact[a] - exact[b], noise, width, each))
    value, low, high = (max(part) for part in zip(*found, strict=True))
    return Measured(value, low, high)


def _w1_interval(value: float, D: Tensor, noise: Tensor, width: float, level: float) -> tuple[float, float, float]:
    far = noise.abs().sum(-1) * width
    q = quantile(far, level)
    if level > 0.99:  # too few draws for the far tail
        q = max(q, float(far.mean() + normal_quantile(level) * far.std()))
    if value > q:
        q = normal_quantile((1 + level) / 2) * float((noise * D.sign()).sum(-1).std() * width)
    return value, max(0.0, value - q), value + q


def largest_wd(
    scores: Scores, reference: str | None = None, *, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> Measured:  # fmt: skip
    """The largest Wd between the reference group (the largest unless given) and another."""
    sizes = torch.bincount(scores.groups, minlength=len(scores.names))
    at = int(sizes.argmax()) if reference is None else scores.names.index(reference)
    present = scores.present(FEWEST)
    others = [g for g in present if g != at]
    if at not in present or not others:
        return UNDEFINED
    edges = _histogram_edges(scores, at)
    rng = np.random.default_rng(seed)
    base = _histogram(*scores.of_group(at), edges)
    base_drawn = _gamma(*base, draws, rng)
    each = 1 - (1 - level) / len(others)
    found = []
    for g in others:
        value = wd(scores, at, g)
        if value is None:
            continue
        mass = _histogram(*scores.of_group(g), edges)
        drawn = _gamma(*mass, draws, rng)
        D = _cumulative(base[0]) - _cumulative(mass[0])
        noise = _cumulative(base_drawn) - _cumulative(drawn) - D
        equal = float(D.abs().sum()) <= quantile(noise.abs().sum(-1), each)  # equality is not excluded
        stars = _squared_w2(base_drawn, drawn, edges)
        low, high = (float(end) for end in quantiles(stars, each))
        found.append((value, 0.0 if equal else min(low, value), max(high, value)))
    return Measured(*(max(part) for part in zip(*found, strict=True))) if found else UNDEFINED


def _histogram_edges(scores: Scores, reference: int) -> Tensor:
    """Numpy's: BINS equal bins over the group's range, half a unit to each side where that is a point."""
    values, _ = scores.of_group(reference)
    low, high = float(values.min()), float(values.max())
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    return torch.linspace(low, high, BINS + 1, dtype=torch.float64)


def _histogram(values: Tensor, weights: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """(bins,) sums of weights and of squared weights; a bin holds its left edge, the last one both."""
    inside = (values >= edges[0]) & (values <= edges[-1])
    at = (torch.searchsorted(edges, values[inside], right=True) - 1).clamp(0, len(edges) - 2)
    w = weights[inside]
    return tuple(torch.bincount(at, part, minlength=len(edges) - 1) for part in (w, w.square()))  # type: ignore[return-value]


def _gamma(mass: Tensor, squares: Tensor, draws: int, rng: np.random.Generator) -> Tensor:
    """(draws, bins) masses with mean `mass` and variance `squares`: for unit weights, Gamma(count)."""
    there = mass > 0
    scale = squares[there] / mass[there]
    drawn = torch.zeros(draws, len(mass), dtype=mass.dtype)
    drawn[:, there] = torch.from_numpy(rng.standard_gamma((mass[there] / scale).numpy(), (draws, len(scale)))) * scale
    return drawn


def _cumulative(mass: Tensor) -> Tensor:
    """Distribution function at the right edges."""
    total = mass.cumsum(-1)
    return total / total[..., -1:]


def _squared_w2(a: Tensor, b: Tensor, edges: Tensor) -> Tensor:
    """Squared 2-Wasserstein distance of masses (..., bins) at the bins' centres: the integral of the squared difference
    of the quantile functions, piecewise constant between the merged levels of both distribution functions."""
    centres = (edges[:-1] + edges[1:]) / 2
    Fa, Fb = _cumulative(a).contiguous(), _cumulative(b).contiguous()
    levels = torch.cat([Fa, Fb], -1).sort(-1).values
    before = torch.cat([torch.zeros_like(levels[..., :1]), levels[..., :-1]], -1)
    middle = (levels + before) / 2  # a point inside each piece, away from the steps
    at = [torch.searchsorted(F, middle.contiguous()).clamp(max=len(centres) - 1) for F in (Fa, Fb)]
    return ((levels - before) * (centres[at[0]] - centres[at[1]]).square()).sum(-1)
