"""Intervals for rates, means and what is computed from them, by the kind of the number.

- A rate of k in n has Wilson's interval.
- A signed difference or a ratio to a reference has the middle 95 % of draws of what the true rates
  may be, Beta(k + 1/2, n - k + 1/2) for each (`percentile`). This is the bootstrap of the table
  with half an example added to each side; without it a cell with 0 of n would resample to nothing
  but 0.
- The largest difference of two groups has simultaneous intervals of all differences, each as wide
  as its own standard error asks, so that a small, noisy group does not hide that two large ones
  differ (`largest_difference`). Their common factor is a quantile of the largest studentized
  difference in draws (`resampled_rates`).
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

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def __str__(self) -> str:
        if self.value is None:
            return "undefined"
        ends = "" if self.low is None else f" [{self.low:.4f}, {self.high:.4f}]"
        return f"{self.value:.4f}{ends}"

    @staticmethod
    def within(value: float, ends: tuple[float, float]) -> IntervalEstimate:
        """A number with an interval that is widened to hold it, where that is rounding or a small
        group's."""
        return IntervalEstimate(value, min(ends[0], value), max(ends[1], value))


UNDEFINED = IntervalEstimate(None)


def estimates(
    value: Tensor, ends: Sequence[Tensor], defined: Tensor, known: Tensor | None = None
) -> list[IntervalEstimate]:
    """One for each number (G,), with ends that are widened to hold it; UNDEFINED where it is not
    defined, without ends where these are not known."""
    known = defined if known is None else defined & known
    columns = value, ends[0].minimum(value), ends[1].maximum(value), defined, known
    return [
        IntervalEstimate(number if ok else None, *(row if has_ends else ()))
        for number, *row, ok, has_ends in zip(*(part.tolist() for part in columns), strict=True)
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
    """(draws, G) of what the true rates may be; of many groups there are fewer draws."""
    yes, no = ((part + added).unsqueeze(-1).numpy() for part in (successes, trials - successes))
    size = len(successes), draws_for(len(successes), draws)
    return torch.from_numpy(rng.beta(yes, no, size)).T


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
    center, error = _shrunk(successes.minimum(n), n, log)
    chance = _shrunk(successes.minimum(n), n, log=False)[0]
    return Resampled(n, center, error, *_shrunk(_binomial_draws(n, chance, draws, rng), n, log))


def _binomial_draws(n: Tensor, chance: Tensor, draws: int, rng: np.random.Generator) -> Tensor:
    """(draws, G) successes of n trials, for n and chance (G,)."""
    trials, chances = n.long().unsqueeze(-1).numpy(), chance.unsqueeze(-1).numpy()
    return torch.from_numpy(rng.binomial(trials, chances, (len(n), draws))).double().T


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
    scale = ((n + 1) / (n - 1).clamp(min=1.0)).sqrt()
    return (_binomial_draws(n, chance, draws, rng) / n - chance) * scale


# Means --------------------------------------------------------------------------------------------


def student_draws(
    mean: Tensor, error: Tensor, freedom: Tensor, draws: int, rng: np.random.Generator
) -> Tensor:
    """(draws, G) of what the true means may be; of many groups there are fewer draws."""
    size = len(mean), draws_for(len(mean), draws)
    t = rng.standard_t(freedom.clamp(min=1.0).unsqueeze(-1).numpy(), size)
    return mean + error * torch.from_numpy(t).T


def resampled_means(
    mean: Tensor, error: Tensor, freedom: Tensor, draws: int, rng: np.random.Generator
) -> Resampled:
    """Normal means with their estimated standard errors."""
    freedom = freedom.clamp(min=1.0).unsqueeze(-1)
    size = len(mean), draws_for(len(mean), draws)
    z = torch.from_numpy(rng.standard_normal(size)).T
    chi = torch.from_numpy(rng.chisquare(freedom.numpy(), size)) / freedom
    return Resampled(freedom[:, 0] + 1, mean, error, mean + error * z, error * chi.T.sqrt())


# Rules --------------------------------------------------------------------------------------------


def percentile(value: float, drawn: Tensor, level: float) -> IntervalEstimate:
    """The middle share `level` of the drawn values (draws,)."""
    low, high = quantiles(drawn, level)
    return IntervalEstimate.within(value, (float(low), float(high)))


def around(value: float, noise: Tensor, level: float) -> tuple[float, float]:
    """A seminorm's value plus and minus the quantile of its noise (draws,)."""
    q = quantile(noise, level)
    return max(0.0, value - q), value + q


def spread(numbers: Tensor) -> Tensor:
    """Largest minus smallest, over the last dimension."""
    return numbers.amax(-1) - numbers.amin(-1)


def largest_difference(parts: Sequence[Resampled], level: float) -> tuple[float, float]:
    """Ends for the largest difference of two groups over all parts.

    Of few groups all differences have simultaneous intervals. Of many each group has a band, as
    wide as the largest distance of a resample from its center says: these are wider, and their cost
    grows with the groups, not the pairs.
    """
    all_large = all(bool((part.examples >= LARGE_GROUP).all()) for part in parts)
    sizes = [len(part.center) for part in parts]
    paired = max(sizes) <= (MAX_PAIRED if all_large else FEW_GROUPS)
    if paired:
        pairs = sum(size * (size - 1) // 2 for size in sizes)
        draws = draws_for(pairs, len(parts[0].centers))
        parts = [_differences(part, draws) for part in parts]
    tiny = torch.finfo(parts[0].center.dtype).tiny
    far = [
        ((part.centers - part.center).abs() / part.errors.clamp(min=tiny)).amax(-1)
        for part in parts
    ]
    q = quantile(torch.stack(far).amax(0), level)
    low = high = 0.0
    for part in parts:
        center, away = part.center, q * part.error
        if paired:
            ends = (center.abs() - away).max(), (center.abs() + away).max()
        else:
            ends = (
                (center - away).max() - (center + away).min(),
                (center + away).max() - (center - away).min(),
            )
        low, high = max(low, float(ends[0])), max(high, float(ends[1]))
    return low, high


def _differences(part: Resampled, draws: int) -> Resampled:
    """Every number minus each later one, in the first `draws` resamples."""
    i, j = torch.triu_indices(len(part.center), len(part.center), 1)

    def both(errors: Tensor) -> Tensor:
        return (errors[..., i].square() + errors[..., j].square()).sqrt()

    centers = part.centers[:draws]
    return Resampled(
        part.examples[i].minimum(part.examples[j]),
        part.center[i] - part.center[j],
        both(part.error),
        centers[:, i] - centers[:, j],
        both(part.errors[:draws]),
    )


def largest_of_means(
    mean: Tensor, error: Tensor, freedom: Tensor, draws: int, rng: np.random.Generator, level: float
) -> tuple[IntervalEstimate, int, int]:
    """The largest difference of two means (G,), and the numbers of the highest and the lowest."""
    ends = largest_difference([resampled_means(mean, error, freedom, draws, rng)], level)
    high, low = int(mean.argmax()), int(mean.argmin())
    return IntervalEstimate.within(float(mean[high] - mean[low]), ends), high, low


def quantiles(drawn: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The ends of the middle share `level` of the drawn values (draws, ...)."""
    shares = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(drawn.numpy(), shares, axis=0, method="nearest")
    return torch.as_tensor(low), torch.as_tensor(high)


def quantile(drawn: Tensor, level: float) -> float:
    """The value that a share `level` of the drawn values (draws,) does not exceed."""
    return float(np.quantile(drawn.numpy(), level, method="inverted_cdf"))
