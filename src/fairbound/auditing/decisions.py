"""From cells to gaps: how large each may be, alone and all at once, what follows, and what would settle it.

A gap is a linear contrast of cell means, sum_k a_k mean_k. Its limit combines those of the cells (MOVER, Zou and
Donner 2008): above its estimate it lies at most sqrt(d' R d), where d_k is a_k times how far mean k may lie above its
estimate (below, where a_k < 0) and R is the correlation of the cell means.

Two questions need two kinds of limits.

- *holds* claims that every gap is within its bound. The claim is wrong only if some gap is not, and then the limit of
  that one gap must have failed: each may be looked at alone, at 5 % (an intersection-union test).
- *violated* claims that some gap exceeds its bound, whichever stands out: 5 % must cover all of them at once. The
  largest of the studentized gaps is drawn from their joint normal law; its quantile gives the tail that each may have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairbound.auditing.verdict_samples import CellSummary, VerdictSample
from fairbound.constraints.constraint import Constraint
from fairbound.metrics.intervals import normal_quantile, quantile

Decision = Literal["holds", "violated", "undecided"]
POWER = 0.8  # with which the rows that are said to decide would decide
DRAWS = 10_000  # of the largest studentized gap
AT_A_TIME = 4_000_000  # numbers


@dataclass(frozen=True)
class Gap:
    """One row of the limits: contrast @ cell means <= bound."""

    name: str
    estimate: float | None  # None where a cell has no rows
    bound: float
    low: float | None  # with `high`: where all gaps lie at once; `low` above the bound is a violation
    high: float | None
    at_most: float | None  # where this gap alone ends; a limit holds where this is within the bound
    decision: Decision
    reason: str  # why nothing can be said; empty where something can
    cell: str  # the cell that adds most to the noise: the scarcest group, as a rule
    rows: int  # of that cell
    needed: float | None  # rows of that cell, and of the others in proportion, that would decide; inf: none would
    minimum: bool  # whether it is about "at least": then estimate and bound are minus the number and its minimum


class _Noise(NamedTuple):
    """How far a gap may lie from its estimate."""

    error: Tensor  # (m,) its standard error
    alone: Tensor  # (m,) above, at the level asked for
    above: Tensor  # (m,) above, all gaps at once
    below: Tensor  # (m,)


def judged(
    limits: Sequence[Constraint], names: Sequence[str], sample: VerdictSample, level: float, seed: int
) -> tuple[Gap, ...]:
    """Every row of the limits."""
    contrast = torch.block_diag(*(limit.contrast.matrix() for limit in limits))
    bound = torch.cat([limit.bound.double().cpu() for limit in limits]).tolist()
    trouble = torch.tensor([bool(cell.trouble) for cell in sample.cells])
    usable = ~((contrast != 0) & trouble).any(1)
    noise = _noise(sample, contrast, usable, level, seed)
    estimate = (contrast @ sample.mean).tolist()
    scarcest = (contrast * sample.error).square().argmax(1).tolist()
    found = []
    for i, name in enumerate(names):
        row = _Row(name, estimate[i], bound[i], bool((contrast[i] <= 0).all()))
        if usable[i]:
            found.append(_decided(row, _Noise(*(part[i] for part in noise)), sample.cells[scarcest[i]]))
        else:
            found.append(_untold(row, [sample.cells[k] for k in contrast[i].nonzero().flatten().tolist()]))
    return tuple(found)


class _Row(NamedTuple):
    name: str
    estimate: float
    bound: float
    minimum: bool


def _untold(row: _Row, cells: Sequence[CellSummary]) -> Gap:
    """A gap that needs a cell of which nothing can be said."""
    cell = min((cell for cell in cells if cell.trouble), key=lambda cell: cell.effective)
    estimate = row.estimate if all(cell.rows > 0 for cell in cells) else None
    return Gap(
        name=row.name,
        estimate=estimate,
        bound=row.bound,
        low=None,
        high=None,
        at_most=None,
        decision="undecided",
        reason=cell.trouble,
        cell=cell.name,
        rows=cell.rows,
        needed=None,
        minimum=row.minimum,
    )


def _decided(row: _Row, noise: _Noise, scarcest: CellSummary) -> Gap:
    low, at_most = row.estimate - float(noise.below), row.estimate + float(noise.alone)
    decision: Decision = "violated" if low > row.bound else "holds" if at_most <= row.bound else "undecided"
    return Gap(
        name=row.name,
        estimate=row.estimate,
        bound=row.bound,
        low=low,
        high=row.estimate + float(noise.above),
        at_most=at_most,
        decision=decision,
        reason="",
        cell=scarcest.name,
        rows=scarcest.rows,
        needed=_rows_that_decide(row, noise, scarcest.rows) if decision == "undecided" else float(scarcest.rows),
        minimum=row.minimum,
    )


def _rows_that_decide(row: _Row, noise: _Noise, rows: int) -> float:
    """Noise falls as 1 / sqrt(rows): as many as leave room for the limit and for the estimate's own luck."""
    half = noise.alone if row.estimate < row.bound else noise.below
    wanted = float(half) + normal_quantile(POWER) * float(noise.error)
    distance = abs(row.estimate - row.bound)
    return float(math.ceil(rows * (wanted / distance) ** 2)) if distance > 1e-9 * wanted else math.inf


def _noise(sample: VerdictSample, contrast: Tensor, usable: Tensor, level: float, seed: int) -> _Noise:
    spread = contrast * sample.error
    error = _combined(spread, sample.correlation)
    noisy = usable & (error > 1e-9 * spread.abs().amax(1))  # cells with the same rows have no gap, and no noise
    tail = _simultaneous_tail(spread[noisy] / error[noisy, None], sample.correlation, level, seed)
    alone, _ = _above_and_below(sample, contrast, 1 - level)
    return _Noise(error, alone, *_above_and_below(sample, contrast, tail))


def _above_and_below(sample: VerdictSample, contrast: Tensor, tail: float) -> tuple[Tensor, Tensor]:
    """(m,) each: how far above and below its estimate every gap may lie."""
    above, below = sample.above_and_below(tail)
    ups = torch.where(contrast > 0, above, below) * contrast
    downs = torch.where(contrast > 0, below, above) * contrast
    return _combined(ups, sample.correlation), _combined(downs, sample.correlation)


def _combined(parts: Tensor, correlation: Tensor) -> Tensor:
    """(m,) sqrt(d' R d) for every row d of parts (m, K)."""
    return ((parts @ correlation) * parts).sum(1).clamp(min=0).sqrt()


def _simultaneous_tail(studentized: Tensor, correlation: Tensor, level: float, seed: int) -> float:
    """The probability on either side that each gap may have, so that all are within their limits at `level`.

    studentized: (m, K) what every cell adds to a gap, in units of the gap's standard error.
    """
    values, vectors = torch.linalg.eigh(correlation)
    root = vectors * values.clamp(min=0).sqrt()  # R = root root'
    to_gaps = _one_of_each(studentized @ root)
    m, K = to_gaps.shape
    if m <= 1:
        return (1 - level) / 2
    rng, worst = np.random.default_rng(seed), []
    step = max(1, min(DRAWS, AT_A_TIME // max(m, K)))
    for start in range(0, DRAWS, step):
        z = torch.from_numpy(rng.standard_normal((K, min(step, DRAWS - start))))
        worst.append((to_gaps @ z).abs().amax(0))
    return float(torch.special.ndtr(-torch.tensor(quantile(torch.cat(worst), level), dtype=torch.float64)))


def _one_of_each(rows: Tensor) -> Tensor:
    """Without the rows that equal another or its opposite: A - B and B - A are off by the same."""
    if len(rows) == 0:
        return rows
    largest = rows.gather(1, rows.abs().round(decimals=9).argmax(1, keepdim=True))
    same: Tensor = (rows * largest.sign()).round(decimals=9) + 0.0  # + 0.0: no -0.0, which equals 0.0 but is another
    once: Tensor = torch.unique(same, dim=0)
    return once


def examples_needed(
    bound: float, *, gap: float | None = None, deviation: float = 0.5, level: float = 0.95, power: float = POWER
) -> int:
    """Rows in each of two groups of one size, for "holds" with probability `power`.

    bound: on the difference of the two means.
    gap: the true difference; half of the bound if not given.
    deviation: standard deviation of the numbers in a group: at most .5 for a rate, about .5 for cross-entropy.

    >>> examples_needed(0.05), examples_needed(0.005)
    (4947, 494605)
    """
    gap = bound / 2 if gap is None else gap
    if not 0 < level < 1 or not 0 < power < 1:
        raise ValueError(f"level and power lie between 0 and 1, got {level} and {power}")
    if not gap < bound:
        raise ValueError(f"a gap of {gap} is not within its bound {bound}: no number of rows shows that it is")
    wanted = normal_quantile(level) + normal_quantile(power)
    return math.ceil(2 * (deviation * wanted / (bound - gap)) ** 2)
