"""One-sided limits of a group's mean: how far above or below its estimate the truth may lie.

Both kinds correct for skewness, which decides one-sided questions: cross-entropy has a long tail to the right, so that
a sample without its tail has a small mean *and* a small standard error, and the truth exceeds Student's limit for 100
rows in 8 to 9 % of samples in place of 5.

- A rate: the second-order corrected limit of Cai (2005, One-sided confidence intervals in discrete distributions),
  which stays sensible at 0 of n.
- Any other mean: Hall's transformation (1992, On the removal of skewness by transformation) of Student's statistic T
  with skewness k of the mean,  g(T) = T + k T^2 / 3 + k^2 T^3 / 27 + k / 6,  whose inverse has a closed form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairbound.metrics.intervals import normal_quantile

# The third moment of a small skewed sample is too small on average; of n rows it is taken for (1 + 5 / n) times larger.
# Chosen between 0 and 10 with exponential, uniform and census losses, 30 to 1,000 rows: errors of 3 to 6 % where 5 are
# meant.
SKEWNESS_TOO_SMALL = 5.0
# Counts of rates are whole numbers: below 20 successes or failures steps are coarse, and half a row is added, without
# which the error of 5 % would rise to 13 at 0 of n.
COARSE = 20.0


def student_quantile(p: float, freedom: Tensor) -> Tensor:
    """Of Student's t, by the expansion around the normal one: to 1e-3 from 20 degrees of freedom on.

    >>> [round(float(student_quantile(p, torch.tensor(29.0))), 3) for p in (0.95, 0.999)]
    [1.699, 3.396]
    """
    z = normal_quantile(p)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def mean_above(error: Tensor, skewness: Tensor, effective: Tensor, tail: float) -> Tensor:
    """How far above its estimate a mean may lie; `skewness` is that of the mean, 1 / sqrt(n) of the rows'."""
    t = student_quantile(1 - tail, effective - 1)
    k = skewness * (1 + SKEWNESS_TOO_SMALL / effective)
    k = torch.where(k.abs() < 1e-6, torch.full_like(k, 1e-6), k)
    inner = 1 - k * (t + k / 6)
    return (error * 3 / k * (1 - inner.sign() * inner.abs() ** (1 / 3))).clamp(min=0)


def rate_above(rate: Tensor, trials: Tensor, tail: float) -> Tensor:
    """How far above its estimate a rate may lie.

    >>> of_none, of_half = rate_above(torch.tensor([0.0, 0.5]), torch.tensor([300.0, 300.0]), 0.05).tolist()
    >>> round(of_none, 3), round(of_half, 3)              # the rule of three: 3 / 300
    (0.01, 0.047)
    """
    z = normal_quantile(1 - tail)
    yes, no = rate * trials, (1 - rate) * trials
    counted = torch.where(torch.minimum(yes, no) < COARSE, (yes + 0.5).minimum(trials), yes)
    p = counted / trials
    added = z * z / 3 + 1 / 6
    center = (counted + added) / (trials + 2 * added)
    correction = (z * z / 18 + 7 / 36) - (13 * z * z + 17) / 18 * p * (1 - p)
    half = z * ((p * (1 - p) + correction / trials).clamp(min=0) / trials).sqrt()
    # with one failure or none the rate may be 1 for all that these rows tell, and the expansion ends below
    high = torch.where(no < 1.5, torch.ones_like(rate), center + half).clamp(max=1)
    return (high - rate).clamp(min=0)
