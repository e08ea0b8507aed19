"""Intervals for rates, means and what is computed from them, by the kind of the number.

- A rate of k in n has Wilson's interval.
- A signed difference or a ratio to a reference has the middle 95 % of draws of what the true rates
  may be, Beta(k + 1/2, n - k + 1/2) for each (`percentile`). This is the bootstrap of the table
  with half an example added to each side; without it a cell with 0 of n would resample to nothing
  but 0.
- The largest difference of two groups has simultaneous intervals of all differences, each as wide
  as its own standard error asks, so that a small, noisy group does not hide that two large ones
  differ (`largest`). Their common factor is a quantile of the largest studentized difference in
  draws (`resampled_rates`).
- Other numbers h that measure how far apart the groups are (mean absolute gaps, sums of gaps) are
  seminorms of the rates, so that |h(r^) - h(r)| <= h(r^ - r): plus and minus a quantile of h of
  resampled noise (`around`).

Percentiles would fail for the last two, because noise makes groups appear to differ: they never
cover a true gap of 0. Means of losses are treated alike, with Student's t in place of the resampled
table. Quantiles are scipy's; its own intervals (binomtest, bootstrap) have no weights, and the
rules here cover better (tests/metrics/test_coverage.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

DRAWS = 10_000
# numbers drawn or compared at a time: many groups get fewer draws, at least MIN_DRAWS
MAX_DRAWN = 4_000_000
MIN_DRAWS = 500
FEWEST = 30  # examples of a group whose losses or scores are compared
MANY_GROUPS = 8_000  # whose draws fit into memory: gaps of more groups have no interval
# groups whose pairs are compared one by one; more are compared through a band for each group,
MAX_PAIRED = 60
# and more than so many already where one of them has fewer than LARGE_GROUP examples: maxima over
# many
FEW_GROUPS = 5
LARGE_GROUP = 50  # tiny groups lie in tails that resampling does not show


class IntervalEstimate(NamedTuple):
    """A number with its interval; None where it is undefined, e.g. a rate without examples."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.value is None:
            return "undefined"
        return f"{self.value:.4f}" + (
            "" if self.low is None else f" [{self.low:.4f}, {self.high:.4f}]"
        )

    @staticmethod
    def within(value: float, ends: tuple[float, float]) -> IntervalEstimate:
        """With an interval that is widened to hold the value, where that is rounding or a small
        group's."""
        return IntervalEstimate(value, min(ends[0], value), max(ends[1], value))


UNDEFINED = IntervalEstimate(None)


def estimates(
    value: Tensor, ends: Sequence[Tensor], defined: Tensor, known: Tensor | None = None
) -> list[IntervalEstimate]:
    """One for each number (G,): UNDEFINED where it is not defined, without ends where these are not
    known."""
    rows, known = torch.stack([value, *ends], -1).tolist(), defined if known is None else known
    return [
        (IntervalEstimate(*row) if sure else IntervalEstimate(row[0])) if ok else UNDEFINED
        for row, ok, sure in zip(rows, defined.tolist(), known.tolist(), strict=True)
    ]


class Resampled(NamedTuple):
    """Estimates with their standard errors, and what both are in resamples."""

    examples: Tensor  # (G,) behind each estimate
    center: Tensor  # (G,)
    error: Tensor  # (G,)
    centers: Tensor  # (draws, G)
    errors: Tensor  # (draws, G)


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"the level of an interval lies between 0 and 1, got {level}")


def draws_for(numbers: int, draws: int = DRAWS) -> int:
    """How many draws to make of that many numbers."""
    return max(min(draws, MAX_DRAWN // max(numbers, 1)), min(draws, MIN_DRAWS))


# Rates --------------------------------------------------------------------------------------------


def wilson(rate: Tensor, trials: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The ends of the score interval of each rate: those p at which the rate lies z standard errors
    of p away.

    >>> [round(float(end), 4) for end in wilson(torch.tensor(0.0), torch.tensor(50.0), 0.95)]
    [0.0, 0.0713]
    """
    z2 = ndtri((1 + level) / 2) ** 2
    n = trials.clamp(min=torch.finfo(trials.dtype).tiny)
    center = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = (z2 * (rate * (1 - rate) / n + z2 / (4 * n * n))).sqrt() / (1 + z2 / n)
    low, high = torch.minimum(center - half, rate), torch.maximum(center + half, rate)
    return low.where(rate > 0, torch.zeros_like(low)), high.where(rate < 1, torch.ones_like(high))


def beta_draws(
    successes: Tensor, trials: Tensor, draws: int, rng: np.random.Generator, *, added: float = 0.5
) -> Tensor:
    """(draws, G) of what the true rates may be."""
    yes, no = ((part + added).unsqueeze(-1).numpy() for part in (successes, trials - successes))
    return torch.from_numpy(rng.beta(yes, no, (len(successes), draws))).T


def resampled_rates(
    successes: Tensor, trials: Tensor, draws: int, rng: np.random.Generator, *, log: bool = False
) -> Resampled:
    """Rates (k + 1) / (n + 2), as Agresti and Caffo estimate them, or their logarithms, and their
    noise.

    Of few groups it is that of Beta(k + 1, n - k + 1), good for tiny ones too. The largest of many
    differences lies in the binomial's tails, which Beta lacks: there the table is resampled, and
    every resample studentized by itself.
    """
    if len(successes) <= FEW_GROUPS:
        drawn = beta_draws(successes, trials, draws, rng, added=1.0)
        drawn = drawn.log() if log else drawn
        error = drawn.std(0)
        return Resampled(trials, drawn.mean(0), error, drawn, error.expand_as(drawn))
    n = _whole(trials)
    chance = _shrunk(successes.minimum(n), n, log=False)[0].unsqueeze(-1).numpy()
    hits = (
        torch.from_numpy(rng.binomial(n.long().unsqueeze(-1).numpy(), chance, (len(n), draws)))
        .double()
        .T
    )
    return Resampled(n, *_shrunk(successes.minimum(n), n, log), *_shrunk(hits, n, log))


def _whole(trials: Tensor) -> Tensor:
    """Weights make effective examples, which are no whole number."""
    return trials.floor().clamp(min=1.0)


def _shrunk(successes: Tensor, n: Tensor, log: bool) -> tuple[Tensor, Tensor]:
    p = (successes + 1) / (n + 2)
    if log:
        return p.log(), ((1 - p) / (p * (n + 2))).sqrt()
    return p, (p * (1 - p) / (n + 2)).sqrt()


def rate_noise(successes: Tensor, trials: Tensor, draws: int, rng: np.random.Generator) -> Tensor:
    """(draws, G) how far rates may lie from the true ones. The rates of the resamples are shrunk
    towards 1/2 and the noise is scaled up, because a variance p (1-p) / n that is estimated from
    the n examples is too small on average, and a mean over many groups would show it."""
    n = _whole(trials)
    chance = (successes.minimum(n) + 2) / (n + 4)
    hits = rng.binomial(
        n.long().unsqueeze(-1).numpy(), chance.unsqueeze(-1).numpy(), (len(n), draws)
    )
    scale = ((n + 1) / (n - 1).clamp(min=1.0)).sqrt()
    return (torch.from_numpy(hits).double().T / n - chance) * scale


# Means --------------------------------------------------------------------------------------------


def student_draws(
    mean: Tensor, error: Tensor, freedom: Tensor, draws: int, rng: np.random.Generator
) -> Tensor:
    """(draws, G) of what the true means may be."""
    t = rng.standard_t(freedom.clamp(min=1.0).unsqueeze(-1).numpy(), (len(mean), draws))
    return mean + error * torch.from_numpy(t).T


def resampled_means(
    mean: Tensor, error: Tensor, freedom: Tensor, draws: int, rng: np.random.Generator
) -> Resampled:
    """Normal means with their estimated standard errors."""
    freedom = freedom.clamp(min=1.0).unsqueeze(-1)
    z = torch.from_numpy(rng.standard_normal((len(mean), draws))).T
    chi = torch.from_numpy(rng.chisquare(freedom.numpy(), (len(mean), draws))) / freedom
    return Resampled(freedom[:, 0] + 1, mean, error, mean + error * z, error * chi.T.sqrt())


# Rules --------------------------------------------------------------------------------------------


def percentile(value: float, drawn: Tensor, level: float) -> IntervalEstimate:
    """The middle share `level` of the drawn values (draws,)."""
    return IntervalEstimate.within(value, quantiles(drawn, level))


def around(value: float, noise: Tensor, level: float) -> tuple[float, float]:
    """A seminorm's value plus and minus the quantile of its noise (draws,)."""
    q = quantile(noise, level)
    return max(0.0, value - q), value + q


def spread(numbers: Tensor) -> Tensor:
    """Largest minus smallest, over the last dimension."""
    return numbers.amax(-1) - numbers.amin(-1)


def largest(parts: Sequence[Resampled], level: float) -> tuple[float, float]:
    """Ends for the largest difference of two groups over all parts."""
    all_large = all(bool((part.examples >= LARGE_GROUP).all()) for part in parts)
    if max(len(part.center) for part in parts) > (MAX_PAIRED if all_large else FEW_GROUPS):
        return _bands(parts, level)
    pairs = sum(len(part.center) * (len(part.center) - 1) // 2 for part in parts)
    draws = draws_for(pairs, len(parts[0].centers))
    worst = parts[0].center.new_zeros(draws)
    for part in parts:
        for i in range(len(part.center) - 1):
            off = _from(part.centers[:draws], i) - _from(part.center, i)
            worst = torch.maximum(worst, (off.abs() / _error(part.errors[:draws], i)).amax(-1))
    q = quantile(worst, level)
    low = high = 0.0
    for part in parts:
        for i in range(len(part.center) - 1):
            gap, error = _from(part.center, i).abs(), _error(part.error, i)
            low, high = (
                max(low, float((gap - q * error).max())),
                max(high, float((gap + q * error).max())),
            )
    return low, high


def _from(numbers: Tensor, i: int) -> Tensor:
    """Number i minus each later one."""
    return numbers[..., i : i + 1] - numbers[..., i + 1 :]


def _error(errors: Tensor, i: int) -> Tensor:
    """Standard errors of these differences."""
    both = errors[..., i : i + 1].square() + errors[..., i + 1 :].square()
    return both.sqrt().clamp(min=torch.finfo(errors.dtype).tiny)


def _bands(parts: Sequence[Resampled], level: float) -> tuple[float, float]:
    """The same from a band for each group, as wide as the largest distance of a resample from its
    center says.

    They are wider than those from pairs, and their cost grows with the groups, not the pairs.
    """
    tiny = torch.finfo(parts[0].center.dtype).tiny
    far = [
        ((part.centers - part.center).abs() / part.errors.clamp(min=tiny)).amax(-1)
        for part in parts
    ]
    q = quantile(torch.stack(far).amax(0), level)
    low = max(float((p.center - q * p.error).max() - (p.center + q * p.error).min()) for p in parts)
    high = max(
        float((p.center + q * p.error).max() - (p.center - q * p.error).min()) for p in parts
    )
    return max(0.0, low), high


def quantiles(drawn: Tensor, level: float) -> tuple[float, float]:
    """The ends of the middle share `level` of the drawn values (draws,)."""
    low, high = np.quantile(drawn.numpy(), [(1 - level) / 2, (1 + level) / 2], method="nearest")
    return float(low), float(high)


def quantile(drawn: Tensor, level: float) -> float:
    """The value that a share `level` of the drawn values (draws,) does not exceed."""
    return float(np.quantile(drawn.numpy(), level, method="inverted_cdf"))
