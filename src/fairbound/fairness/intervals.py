"""Intervals for rates, means and what is computed from them.

The rate of k in n has Wilson's interval. What is computed from several rates (or means) rests on draws r* of what the
true ones may be, given the rows:

- a rate of k in n: Beta(k + a, n - k + a), independently for every group. This is the bootstrap of the table with a
  little added to each side; without it a cell with 0 of n would resample to nothing but 0. For signed differences and
  ratios a = 1/2 (Jeffreys); for gaps a = 1 (Agresti and Caffo's), which keeps tiny groups from looking apart;
- a mean of n values: mean + standard error * Student t with n - 1 degrees of freedom.

From the draws, by the kind of the number:

- `percentile`, for signed differences and ratios: the middle 95 % of the drawn values;
- `largest`, for the largest difference of two groups: simultaneous intervals of all differences, each as wide as its
  own standard error asks; a small, noisy group then does not hide that two large ones differ;
- `around`, for other numbers h that measure how far apart the groups are (a seminorm of the rates: mean absolute gaps,
  sums of gaps). The triangle inequality gives |h(r^) - h(r)| <= h(r^ - r), so that the 95 % quantile q of h(r* - r^)
  makes [h(r^) - q, h(r^) + q] cover with at least 95 %.

Percentiles fail for the last two, because noise makes groups look apart: a true gap of 0 they never cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

DRAWS = 10_000
ROOM = 4_000_000  # numbers drawn or compared at a time: many groups get fewer draws, at least FEWEST
FEWEST = 500


class Measured(NamedTuple):
    """A number with its interval; None where it is undefined, e.g. a rate of nobody."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.value is None:
            return "undefined"
        return f"{self.value:.4f}" + ("" if self.low is None else f" [{self.low:.4f}, {self.high:.4f}]")

    @staticmethod
    def within(value: float, ends: tuple[float, float]) -> Measured:
        """With an interval that is widened to hold the value, where that is rounding or a small group's."""
        return Measured(value, min(ends[0], value), max(ends[1], value))


UNDEFINED = Measured(None)


def draws_for(numbers: int, draws: int = DRAWS) -> int:
    """How many draws to make of that many numbers."""
    return max(min(draws, ROOM // max(numbers, 1)), min(draws, FEWEST))


def beta_draws(
    successes: Tensor, trials: Tensor, draws: int, rng: np.random.Generator, added: float = 0.5
) -> Tensor:  # fmt: skip
    """(draws, ...) of what the true rates may be."""
    shape = (*successes.shape, draws)
    yes, no = ((part + added).unsqueeze(-1).numpy() for part in (successes, trials - successes))
    return torch.from_numpy(rng.beta(yes, no, shape)).movedim(-1, 0)  # draws lie together in memory: quick to sort


def student_draws(mean: Tensor, error: Tensor, freedom: Tensor, draws: int, rng: np.random.Generator) -> Tensor:
    """(draws, ...) of what the true means may be."""
    shape = (*mean.shape, draws)
    t = torch.from_numpy(rng.standard_t(freedom.clamp(min=1.0).unsqueeze(-1).numpy(), shape))
    return mean + error * t.movedim(-1, 0)


def wilson(rate: Tensor, trials: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The ends of the score interval of each rate: those p at which the rate lies z standard errors of p away.

    >>> [round(float(end), 4) for end in wilson(torch.tensor(0.0), torch.tensor(50.0), 0.95)]
    [0.0, 0.0713]
    """
    z2 = normal_quantile((1 + level) / 2) ** 2
    n = trials.clamp(min=torch.finfo(trials.dtype).tiny)
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = (z2 * (rate * (1 - rate) / n + z2 / (4 * n * n))).sqrt() / (1 + z2 / n)
    low, high = torch.minimum(centre - half, rate), torch.maximum(centre + half, rate)
    return low.where(rate > 0, torch.zeros_like(low)), high.where(rate < 1, torch.ones_like(high))


def percentile(value: float, drawn: Tensor, level: float) -> Measured:
    """The middle share `level` of the drawn values (draws,)."""
    low, high = quantiles(drawn, level)
    return Measured.within(value, (float(low), float(high)))


def around(
    parts: Sequence[Tensor], drawn: Sequence[Tensor], form: Callable[[Sequence[Tensor]], Tensor], level: float
) -> tuple[float, float]:  # fmt: skip
    """h(r^) plus and minus the quantile of h(r* - r^); h is a seminorm of the parts, each (G,), drawn (draws, G)."""
    value = float(form(parts))
    q = quantile(form([star - part for star, part in zip(drawn, parts, strict=True)]), level)
    return max(0.0, value - q), value + q


def spread(numbers: Tensor) -> Tensor:
    """Largest minus smallest, over the last dimension."""
    return numbers.amax(-1) - numbers.amin(-1)


def largest(drawn: Sequence[Tensor], level: float) -> tuple[float, float]:
    """Ends for the largest difference of two groups over all parts, each drawn (draws, G) independently by group."""
    pairs = sum(star.shape[1] * (star.shape[1] - 1) // 2 for star in drawn)
    drawn = [star[: draws_for(pairs, len(star))] for star in drawn]
    moments = [(star.mean(0), star.var(0)) for star in drawn]
    worst = torch.zeros(len(drawn[0]), dtype=drawn[0].dtype)
    for star, (mean, variance) in zip(drawn, moments, strict=True):
        for i in range(len(mean) - 1):
            off = (star[:, i, None] - star[:, i + 1 :]) - (mean[i] - mean[i + 1 :])
            worst = torch.maximum(worst, (off.abs() / _error(variance, i)[i + 1 :]).amax(1))
    q = quantile(worst, level)
    low = high = 0.0
    for mean, variance in moments:
        for i in range(len(mean) - 1):
            gap, error = (mean[i] - mean[i + 1 :]).abs(), _error(variance, i)[i + 1 :]
            low, high = max(low, float((gap - q * error).max())), max(high, float((gap + q * error).max()))
    return low, high


def _error(variance: Tensor, i: int) -> Tensor:
    """(G,) standard errors of the differences between group i and every group."""
    return (variance[i] + variance).sqrt().clamp(min=torch.finfo(variance.dtype).tiny)


def normal_quantile(p: float) -> float:
    """Of the standard normal distribution.

    >>> round(normal_quantile(0.975), 3)
    1.96
    """
    return float(torch.special.ndtri(torch.tensor(p, dtype=torch.float64)))


def quantiles(drawn: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The ends of the middle share `level` of drawn values (draws, ...). By sorting: torch.quantile is slower, and
    refuses more than 16 million numbers."""
    ordered = drawn.movedim(0, -1).sort(-1).values
    last = len(drawn) - 1
    low = round((1 - level) / 2 * last)
    return ordered[..., low], ordered[..., last - low]


def quantile(drawn: Tensor, level: float) -> float:
    """The value that a share `level` of the drawn values (draws,) does not exceed."""
    return float(drawn.sort().values[min(len(drawn) - 1, math.ceil(level * len(drawn)) - 1)])
