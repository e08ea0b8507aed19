"""From cells to gaps: how large each may be, alone and all at once, the decision, and how many
examples would decide.

A gap is a linear contrast of cell means, sum_k a_k mean_k. Its confidence limit combines those of
the cells (MOVER, Zou and Donner 2008): above its estimate it lies at most sqrt(d' R d), where d_k
is a_k times how far mean k may lie above its estimate (below, where a_k < 0) and R is the
correlation of the cell means. Two questions need two kinds of limits.

- *holds* claims that every gap is within its bound. The claim is wrong only if some gap is not, and
  then the limit of that one gap must have failed: each may be tested alone, at 5 % (an
  intersection-union test).
- *violated* claims that some gap exceeds its bound, whichever stands out: 5 % must cover all of
  them at once. The largest of the studentized gaps is drawn from their joint normal law; its
  quantile gives the tail that each may have.

The limits of a cell's mean correct for skewness, which decides one-sided questions: cross-entropy
has a long tail to the right, so that a sample without its tail has a small mean *and* a small
standard error, and the truth exceeds Student's limit for 100 examples in 8 to 9 % of samples in
place of 5. So neither is scipy's.

- A rate: the second-order corrected limit of Cai (2005, One-sided confidence intervals in discrete
  distributions), which stays sensible at 0 of n.
- Any other mean: Hall's transformation (1992, On the removal of skewness by transformation) of
  Student's statistic T with skewness k of the mean,  g(T) = T + k T^2 / 3 + k^2 T^3 / 27 + k / 6,
  whose inverse has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy.special import ndtr, ndtri, stdtrit
from torch import Tensor

from fairbound.auditing._cell_summaries import MIN_EXAMPLES, CellSummaries
from fairbound.constraints._constraint import Constraint
from fairbound.metrics._intervals import DRAWS, MAX_DRAWN, quantile

Decision = Literal["holds", "violated", "undecided"]
POWER = 0.8  # probability of a decision with `Gap.needed` examples

# The third moment of a small skewed sample is too small on average; of n examples it is taken for
# (1 + 5 / n) times larger. Chosen between 0 and 10 with exponential, uniform and census losses, 30
# to 1,000 examples: errors of 3 to 6 % where 5 are meant.
SKEWNESS_CORRECTION = 5.0
# Counts of rates are whole numbers: below 20 successes or failures steps are coarse, and half an
# example is added, without which the error of 5 % would rise to 13 at 0 of n.
COARSE_BELOW = 20.0


@dataclass(frozen=True)
class Gap:
    """One row of the constraints: contrast @ cell means <= bound."""

    name: str
    estimate: float | None  # None where a cell has no examples
    bound: float
    # whether it is a minimum: then estimate and bound are minus the number and its minimum
    minimum: bool
    cell: str  # the cell that adds most to the noise: the scarcest group, as a rule
    examples: int  # of that cell
    pair: int = 0  # the same number for A - B and B - A
    decision: Decision = "undecided"
    reason: str = ""  # why there is no decision; else empty
    # with `high`: simultaneous limits of all gaps; `low` above the bound is a violation
    low: float | None = None
    high: float | None = None
    # upper limit of this gap alone; the constraint holds where this is within the bound
    at_most: float | None = None
    # examples of that cell that decide if the estimate is right; inf: no number does
    needed: float | None = None
    # the same if the truth is within a standard error of it
    needed_between: tuple[float, float] | None = None


class _Noise(NamedTuple):
    """How far gaps may lie from their estimates."""

    error: Tensor  # (m,) standard errors
    alone: Tensor  # (m,) above, at the level asked for
    above: Tensor  # (m,) above, all gaps at once
    below: Tensor  # (m,)


def decide_gaps(
    constraints: Sequence[Constraint],
    names: Sequence[str],
    summaries: CellSummaries,
    level: float,
    seed: int,
) -> tuple[Gap, ...]:
    """Every row of the constraints."""
    contrast = torch.block_diag(*(constraint.contrast.matrix() for constraint in constraints))
    bound = torch.cat([constraint.bound.double().cpu() for constraint in constraints]).tolist()
    problem = torch.tensor([bool(cell.problem) for cell in summaries.cells])
    usable = ~((contrast != 0) & problem).any(1)
    noise = _noise(summaries, contrast, usable, level, seed)
    estimate = (contrast @ summaries.column("mean")).tolist()
    signless = torch.cat([_without_sign(contrast), torch.tensor(bound)[:, None]], 1)
    pair = torch.unique(signless, dim=0, return_inverse=True)[1].tolist()
    scarcest = (contrast * summaries.column("error")).square().argmax(1).tolist()
    gaps = []
    for i, name in enumerate(names):
        cells = [summaries.cells[k] for k in contrast[i].nonzero().flatten().tolist()]
        problematic = [cell for cell in cells if cell.problem] or [summaries.cells[scarcest[i]]]
        cell = min(problematic, key=lambda cell: cell.effective)
        gap = Gap(
            name,
            estimate[i] if all(cell.examples > 0 for cell in cells) else None,
            bound[i],
            minimum=bool((contrast[i] <= 0).all()),
            cell=cell.name,
            examples=cell.examples,
            pair=pair[i],
            reason=cell.problem,
        )
        if usable[i]:
            gap = _decided(gap, estimate[i], _Noise(*(part[i] for part in noise)))
        gaps.append(gap)
    return tuple(gaps)


def _decided(gap: Gap, estimate: float, noise: _Noise) -> Gap:
    """The gap with its limits, the decision, and how many examples would decide."""
    low, at_most = estimate - float(noise.below), estimate + float(noise.alone)
    bound, examples, error = gap.bound, float(gap.examples), float(noise.error)
    decision: Decision = "violated" if low > bound else "holds" if at_most <= bound else "undecided"
    needed, between, excess = examples, (examples, examples), estimate - bound
    if decision == "undecided":
        needed, *ends = (examples * _times(excess + away, noise) for away in (0.0, -error, error))
        # at least one more than there are, as those have not decided
        between = max(examples + 1, min(ends)), math.inf if abs(excess) <= error else max(ends)
    return replace(
        gap,
        decision=decision,
        low=low,
        high=estimate + float(noise.above),
        at_most=at_most,
        needed=needed,
        needed_between=between,
    )


def _times(excess: float, noise: _Noise) -> float:
    """How many times as many examples decide if the gap exceeds its bound by so much.

    Noise decreases as 1 / sqrt(examples): as many as allow for the limit and for the noise of the
    estimate.
    """
    limit = noise.alone if excess < 0 else noise.below
    wanted = float(limit + ndtri(POWER) * noise.error)
    return (wanted / excess) ** 2 if abs(excess) > 1e-9 * wanted else math.inf


def _noise(
    summaries: CellSummaries, contrast: Tensor, usable: Tensor, level: float, seed: int
) -> _Noise:
    spread = contrast * summaries.column("error")
    error = _combined(spread, summaries.correlation)
    # cells with the same examples have no gap, and no noise
    noisy = usable & (error > 1e-9 * spread.abs().amax(1))
    studentized = spread[noisy] / error[noisy, None]
    tail = _simultaneous_tail(studentized, summaries.correlation, level, seed)
    alone, _ = _above_and_below(summaries, contrast, 1 - level)
    return _Noise(error, alone, *_above_and_below(summaries, contrast, tail))


def _above_and_below(
    summaries: CellSummaries, contrast: Tensor, tail: float
) -> tuple[Tensor, Tensor]:
    """(m,) each: how far above and below its estimate every gap may lie, each except with
    probability `tail`."""
    names = ("is_rate", "mean", "error", "effective", "skewness")
    is_rate, mean, error, n, skewness = map(summaries.column, names)
    is_rate, n = is_rate > 0, n.clamp(min=MIN_EXAMPLES)
    p = torch.where(is_rate, mean, 0.5)
    above = torch.where(is_rate, rate_above(p, n, tail), mean_above(error, skewness, n, tail))
    below = torch.where(is_rate, rate_above(1 - p, n, tail), mean_above(error, -skewness, n, tail))
    up = torch.where(contrast > 0, above, below)
    down = torch.where(contrast > 0, below, above)
    R = summaries.correlation
    return _combined(up * contrast, R), _combined(down * contrast, R)


def _combined(parts: Tensor, correlation: Tensor) -> Tensor:
    """(m,) sqrt(d' R d) for every row d of parts (m, K)."""
    return ((parts @ correlation) * parts).sum(1).clamp(min=0).sqrt()


def _simultaneous_tail(studentized: Tensor, correlation: Tensor, level: float, seed: int) -> float:
    """The probability on either side that each gap may have, so that all are within their limits at
    `level`.

    studentized: (m, K) what every cell adds to a gap, in units of the gap's standard error.
    """
    values, vectors = torch.linalg.eigh(correlation)
    root = vectors * values.clamp(min=0).sqrt()  # R = root root'
    # A - B and B - A have the same error
    to_gaps: Tensor = torch.unique(_without_sign(studentized @ root), dim=0)
    m, K = to_gaps.shape
    if m <= 1:
        return (1 - level) / 2
    rng, worst = np.random.default_rng(seed), []
    step = max(1, min(DRAWS, MAX_DRAWN // max(m, K)))
    for start in range(0, DRAWS, step):
        z = torch.from_numpy(rng.standard_normal((K, min(step, DRAWS - start))))
        worst.append((to_gaps @ z).abs().amax(0))
    return float(ndtr(-quantile(torch.cat(worst), level)))


def _without_sign(rows: Tensor) -> Tensor:
    """The rows with their largest entry positive, so that a row and its opposite are equal."""
    largest = rows.gather(1, rows.abs().round(decimals=9).argmax(1, keepdim=True))
    # + 0.0: no -0.0, which equals 0.0 but is another
    return (rows * largest.sign()).round(decimals=9) + 0.0


# Limits of one mean -------------------------------------------------------------------------------


def mean_above(error: Tensor, skewness: Tensor, effective: Tensor, tail: float) -> Tensor:
    """How far above its estimate a mean may lie; `skewness` is that of the mean, 1 / sqrt(n) of the
    examples'."""
    t = torch.from_numpy(stdtrit((effective - 1).numpy(), 1 - tail))
    k = skewness * (1 + SKEWNESS_CORRECTION / effective)
    k = torch.where(k.abs() < 1e-6, torch.full_like(k, 1e-6), k)
    inner = 1 - k * (t + k / 6)
    return (error * 3 / k * (1 - inner.sign() * inner.abs() ** (1 / 3))).clamp(min=0)


def rate_above(rate: Tensor, trials: Tensor, tail: float) -> Tensor:
    """How far above its estimate a rate may lie.

    >>> of_none, of_half = rate_above(
    ...     torch.tensor([0.0, 0.5]), torch.tensor([300.0, 300.0]), 0.05
    ... ).tolist()
    >>> round(of_none, 3), round(of_half, 3)  # the rule of three: 3 / 300
    (0.01, 0.047)
    """
    z = float(ndtri(1 - tail))
    yes, no = rate * trials, (1 - rate) * trials
    counted = torch.where(torch.minimum(yes, no) < COARSE_BELOW, (yes + 0.5).minimum(trials), yes)
    p = counted / trials
    added = z * z / 3 + 1 / 6
    center = (counted + added) / (trials + 2 * added)
    correction = (z * z / 18 + 7 / 36) - (13 * z * z + 17) / 18 * p * (1 - p)
    half = z * ((p * (1 - p) + correction / trials).clamp(min=0) / trials).sqrt()
    # with one failure or none these examples do not exclude a rate of 1, and the expansion ends
    # below
    high = torch.where(no < 1.5, torch.ones_like(rate), center + half).clamp(max=1)
    return (high - rate).clamp(min=0)


def examples_needed(
    bound: float,
    *,
    gap: float | None = None,
    deviation: float = 0.5,
    level: float = 0.95,
    power: float = POWER,
) -> int:
    """Examples in each of two groups of one size, for "holds" with probability `power`.

    Args:
        bound: on the difference of the two means.
        gap: the true difference; None: half of the bound.
        deviation: standard deviation of the numbers in a group: at most 0.5 for a rate, about 0.5
            for cross-entropy.
        level: of confidence, between 0 and 1.
        power: probability of the decision "holds", between 0 and 1.

    >>> examples_needed(0.05), examples_needed(0.005)
    (4947, 494605)
    """
    gap = bound / 2 if gap is None else gap
    if not 0 < level < 1 or not 0 < power < 1:
        raise ValueError(f"level and power lie between 0 and 1, got {level} and {power}")
    if not gap < bound:
        raise ValueError(
            f"a gap of {gap} is not within its bound {bound}: no number of examples shows that"
            " it is"
        )
    wanted = float(ndtri(level)) + float(ndtri(power))
    return math.ceil(2 * (deviation * wanted / (bound - gap)) ** 2)
