"""What a board counts: instances that are solved at the end of the budget, and how soon targets are
reached.

An instance is a problem, as it is or with a single change. The merit of a state is the larger of
two parts: the share of the loss gap that is left, (F - F_ref) / (F_0 - F_ref), and the largest
violation in units of the constraints' scale. Where the solution x* is known and unique, and x
short, it is the distance to it, |x - x*| / |x_0 - x*|. A run solves an instance if the median merit
of its last three recorded points is at most the target. A method's share is the mean over problems
of the mean over their instances and seeds; it depends on no other method.

    merit, end_merit    of the states of runs, and of their ends
    reached             the share of the budget after which runs reach targets
    bootstrap           shares with intervals, differences, and which pairs can be told apart
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

if TYPE_CHECKING:
    from fairbound.benchmark.problems._catalog import Reference

Numbers = NDArray[np.float64]
# by method, by problem, by instance: (R,) of runs; empty without runs
Runs = Sequence[Sequence[Sequence[Numbers]]]

TARGETS = (0.3, 0.1, 0.03)
TARGET = 0.1  # of the headline
CREDIT = 0.3  # a merit above it is worth nothing
SPEED_TARGETS = np.geomspace(CREDIT, 0.01, 25)
# variables; in more, the loss says what matters: flat directions are far and cost nothing
FEW_VARIABLES = 10
_LAST = 3  # recorded points whose median is the end, and that confirm a target
_DRAWS, _LEVEL, _SEED = 2000, 0.95, 18


# Merit --------------------------------------------------------------------------------------------


def merit(loss: Any, violation: Any, distance: Any, reference: Reference) -> Numbers:
    """(...,) of states; not a number is infinitely bad. An exact loss counts on both sides: below
    it is infeasible.

    >>> from fairbound.benchmark.problems import Reference
    >>> best = Reference(loss=1.0, start=3.0, scale=0.5, residual=None, exact=False, how="")
    >>> merit([1.2, 0.9], [0.0, 0.05], None, best)
    array([0.1, 0.1])
    """
    if distance is not None:
        parts = np.asarray(distance, float)
    else:
        gap = (np.asarray(loss, float) - reference.loss) / max(
            abs(reference.start - reference.loss), 1e-12
        )
        parts = np.maximum(
            np.abs(gap) if reference.exact else gap, np.asarray(violation, float) / reference.scale
        )
    return np.where(np.isnan(parts), math.inf, parts)


def end_merit(loss: Any, violation: Any, distance: Any, reference: Reference) -> Numbers:
    """(..., K) -> (...,) the median over the last points."""
    return np.asarray(np.median(merit(loss, violation, distance, reference)[..., -_LAST:], axis=-1))


def target_of(slack: float, target: float = TARGET) -> float:
    """Target on an instance whose targets are so many times as large, but never beyond the
    credit."""
    return min(CREDIT, slack * target)


def reached(merits: Numbers, shares: Numbers, targets: Numbers = SPEED_TARGETS) -> Numbers:
    """(R, K) at these shares of the budget -> (R, T) where each target is reached, and at the next
    two points.

    >>> reached(
    ...     np.array([[0.5, 0.2, 0.4, 0.2, 0.1, 0.1]]), np.arange(1, 7) / 6, np.array([0.3, 0.1])
    ... )
    array([[0.66666667,        inf]])
    """
    if merits.shape[-1] < _LAST:
        return np.full((len(merits), len(targets)), math.inf)
    good = merits[:, None] <= targets[:, None]
    confirmed = np.lib.stride_tricks.sliding_window_view(good, _LAST, axis=-1).all(-1)
    return np.where(confirmed.any(-1), shares[confirmed.argmax(-1)], math.inf)


# Shares and intervals -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Shares:
    """Shares of M methods; an interval is (low, high), 95 %. Differences are row minus column."""

    share: Numbers  # (M,)
    interval: Numbers  # (M, 2)
    difference: Numbers  # (M, M)
    difference_interval: Numbers  # (M, M, 2)

    @property
    def order(self) -> list[int]:
        """The largest share first."""
        return sorted(range(len(self.share)), key=lambda i: (-self.share[i], i))

    @property
    def apart(self) -> NDArray[np.bool_]:
        """(M, M) whether the interval of a difference is above or below 0."""
        low, high = np.moveaxis(self.difference_interval, -1, 0)
        apart: NDArray[np.bool_] = (low > 1e-12) | (high < -1e-12)
        return apart

    @property
    def pairs(self) -> tuple[int, int]:
        """How many can be told apart, and how many there are."""
        return int(np.triu(self.apart, 1).sum()), len(self.share) * (len(self.share) - 1) // 2


def bootstrap(runs: Runs, draws: int = _DRAWS) -> Shares:
    """Draws problems with replacement, then runs within each instance: the same for every method,
    so paired.

    With one problem, it is a bootstrap over seeds alone. Random numbers depend on the numbers of
    problems, instances and runs only: another method moves neither the share nor the interval of
    any. Few problems or seeds make redrawn shares too narrow, so they are widened as Student's t
    widens the normal distribution. One run has no interval.
    """
    share = np.array([_mean(method) for method in runs])
    drawn = _drawn(runs, draws)
    return Shares(
        share=share,
        interval=np.clip(_interval(drawn), 0.0, 1.0),
        difference=share[:, None] - share[None],
        difference_interval=np.clip([_interval(one - drawn) for one in drawn], -1.0, 1.0),
    )


def _mean(problems: Sequence[Sequence[Numbers]]) -> float:
    means = [
        np.mean([runs.mean() if runs.size else 0.0 for runs in instances]) for instances in problems
    ]
    return float(np.mean(means)) if means else 0.0


def _drawn(runs: Runs, draws: int) -> Numbers:
    """(M, D) shares of redrawn boards."""
    problems = len(runs[0]) if runs else 0
    if not problems:
        return np.zeros((len(runs), draws))
    chosen = np.random.default_rng([_SEED, 0]).integers(problems, size=(draws, problems))
    redrawn = []
    for method in runs:
        means = np.zeros((draws, problems))
        for i, instances in enumerate(method):
            # A stream for each instance: a method with more runs than others moves nothing of
            # theirs
            streams = [np.random.default_rng([_SEED, 1, i, j]) for j in range(len(instances))]
            means[:, i] = np.mean(
                [_redrawn(*one, draws) for one in zip(instances, streams, strict=True)], axis=0
            )
        shares, center = np.take_along_axis(means, chosen, 1).mean(1), _mean(method)
        size = problems if problems > 1 else min((one.size for one in method[0]), default=0)
        redrawn.append(center + _widening(size) * (shares - center))
    return np.array(redrawn)


def _redrawn(runs: Numbers, stream: np.random.Generator, draws: int) -> Numbers:
    """(R,) -> (D,) means of as many runs, drawn with replacement."""
    if not runs.size:
        return np.zeros(draws)
    means: Numbers = runs[(stream.random((draws, runs.size)) * runs.size).astype(int)].mean(1)
    return means


def _widening(count: int) -> float:
    """Factor from the spread of means of redrawn values to a 95 % interval like Student's.

    >>> [round(_widening(count), 2) for count in (0, 2, 5, 20)]
    [1.0, 9.17, 1.58, 1.1]
    """
    if count < 2:
        return math.nan if count else 1.0  # without runs, the share is 0 for certain
    level = (1 + _LEVEL) / 2
    return float(stdtrit(count - 1, level) / ndtri(level) * math.sqrt(count / (count - 1)))


def _interval(drawn: Numbers) -> Numbers:
    """(..., D) -> (..., 2)"""
    return np.moveaxis(np.quantile(drawn, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=-1), 0, -1)
