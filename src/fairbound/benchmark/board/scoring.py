"""Scores of a board: how soon runs reach targets of loss and feasibility, and which methods can be told apart.

A run reaches a target when its loss and its largest violation are small enough at a recorded point and at the next two
(noise cannot win by one lucky look). Its score is the area under its profile: the share of targets reached, against
the logarithm of the epochs, between 1 and the end of the budget; 1 for all targets within one epoch, 0 for none ever.
A method's score is the mean over problems of the mean over seeds. It depends on no other method.

    hits, known_hits    epochs at which runs reach targets
    met                 which targets the ends of runs meet, on held-out examples or in another population
    areas, run_scores   the score of runs
    bootstrap           scores with intervals, differences, ranks
    speed               secondary figures: epochs to one target, share of runs that reach it, speed-up
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from fairbound.benchmark.budget import SHORTER_EPOCHS

if TYPE_CHECKING:
    from fairbound.benchmark.board.results import Board, Curves
    from fairbound.benchmark.problems.catalog import Reference

Numbers = NDArray[np.float64]
Runs = Sequence[Sequence[Numbers]]  # by method, by problem: (R,) scores of runs; empty where there are none

LOSS_TARGETS = (0.3, 0.1, 0.03, 0.01)  # of the way from the reference's loss to that of the start
VIOLATION_TARGETS = (1.0, 0.3, 0.1, 0.03)  # of the constraints' scale
MIDDLE = (1, 1)  # the target (.1, .3), of the secondary figures
CONFIRMED = 3  # points in a row
FIRST, LAST = 1.0, 100.0  # epochs
DRAWS, LEVEL, SEED = 2000, 0.95, 18
BASELINE = "DescentAscent"  # of the speed-up

# Targets --------------------------------------------------------------------------------------------------------------


def loss_bounds(reference: Reference) -> Numbers:
    """(4,) Where a start lies below the reference (and is infeasible), the distance between them counts."""
    return reference.loss + np.array(LOSS_TARGETS) * abs(reference.start - reference.loss)


def violation_bounds(reference: Reference) -> Numbers:
    """(4,)"""
    return np.array(VIOLATION_TARGETS) * reference.scale


def met(loss: Numbers, violation: Numbers, reference: Reference) -> NDArray[np.bool_]:
    """(...,) -> (..., 4, 4) whether each target (loss, violation) holds; not a number is a miss."""
    small_loss = loss[..., None] <= loss_bounds(reference)
    feasible = violation[..., None] <= violation_bounds(reference)
    return small_loss[..., :, None] & feasible[..., None, :]


def hits(curves: Curves, reference: Reference) -> Numbers:
    """(R, 4, 4) epochs at which runs reach each target; infinity where they never do."""
    return first_confirmed(np.moveaxis(met(curves.loss, curves.violation, reference), 1, -1), curves.epochs)


def known_hits(curves: Curves, reference: Reference) -> Numbers:
    """(R, 4) the same against a known answer: the distance to x*, of that at the start, within `LOSS_TARGETS`.

    Without a unique x*: the loss on both sides of the solution's, and the violation within the same share of its scale.
    """
    factors = np.array(LOSS_TARGETS)[:, None]
    if curves.distance is not None:
        near = curves.distance[:, None] <= factors
    else:
        error = np.abs(curves.loss - reference.loss) / abs(reference.start - reference.loss)
        near = (error[:, None] <= factors) & (curves.violation[:, None] <= factors * reference.scale)
    return first_confirmed(near, curves.epochs)


def first_confirmed(reached: NDArray[np.bool_], epochs: Numbers) -> Numbers:
    """(..., K) -> (...,) epochs of the first point that holds with the next two; the last two cannot be confirmed.

    >>> first_confirmed(np.array([[True, False, True, True, True], [False, False, False, True, True]]), np.arange(1, 6))
    array([ 3., inf])
    """
    if reached.shape[-1] < CONFIRMED:
        return np.full(reached.shape[:-1], math.inf)
    confirmed = np.lib.stride_tricks.sliding_window_view(reached, CONFIRMED, axis=-1).all(-1)
    return np.where(confirmed.any(-1), epochs[confirmed.argmax(-1)], math.inf)


def areas(hits: Numbers, last: float = LAST) -> Numbers:
    """The area under a profile with one step, at these epochs: 1 at the first epoch, 0 at the last or never.

    >>> areas(np.array([0.5, 1.0, 10.0, 100.0, math.inf]))
    array([1. , 1. , 0.5, 0. , 0. ])
    """
    return np.clip(1.0 - np.log(np.clip(hits, FIRST, last)) / math.log(last / FIRST), 0.0, 1.0)


# Scores of runs -------------------------------------------------------------------------------------------------------


def track_hits(board: Board, track: str, method: str, problem: str) -> Numbers | None:
    """(R, T) epochs to the targets of a track, 16 or 4; None without runs, or where only the end counts."""
    info, cell = board.problem(problem), (method, problem)
    if track in ("heldout", "shift") or (cell not in board.curves and track != "robust"):
        return None
    if track == "robust":
        found = [hits(one, info.reference) for one in board.robust.get(cell, ())]
        return np.concatenate(found).reshape(-1, 16) if found else None
    if track == "known":
        return known_hits(board.curves[cell], info.reference)
    return hits(board.curves[cell], info.reference).reshape(-1, 16)


def run_scores(board: Board, track: str, method: str, problem: str) -> Numbers:
    """(R,) empty where there are no runs. At the end of a run (held-out, shift): the share of the 16 targets."""
    info, cell = board.problem(problem), (method, problem)
    if track == "heldout" and cell in board.heldout:
        ends = board.heldout[cell]
        return np.asarray(met(ends.loss, ends.violation, info.reference).mean((1, 2)))
    if track == "shift" and cell in board.shift:
        there = board.shift[cell]
        return np.asarray(met(there.loss, there.violation, info.reference).mean((1, 2, 3)))
    found = track_hits(board, track, method, problem)
    last = min(info.epochs, SHORTER_EPOCHS) if track == "robust" else info.epochs
    return np.empty(0) if found is None else np.asarray(areas(found, last).mean(1))


# Intervals and ranks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Ranking:
    """Of M methods; an interval is (low, high), 95 %. Differences are row minus column."""

    score: Numbers  # (M,)
    interval: Numbers  # (M, 2)
    difference: Numbers  # (M, M)
    difference_interval: Numbers  # (M, M, 2)
    rank: NDArray[np.int64]  # (M,) 1 + number of methods that are significantly better
    first: Numbers  # (M,) share of draws in which the score is the largest; equal ones share
    rank_range: NDArray[np.int64]  # (M, 2) the smallest and largest rank when one problem is left out
    by_problem: Numbers  # (M, P) mean over seeds

    @property
    def order(self) -> list[int]:
        """Best first: by rank, then by score."""
        return sorted(range(len(self.score)), key=lambda i: (self.rank[i], -self.score[i], i))


def bootstrap(runs: Runs, draws: int = DRAWS) -> Ranking:
    """Draws problems with replacement, then runs within each; the same for every method, so differences are paired.

    With one problem, it is a bootstrap over seeds alone. Random numbers depend on the numbers of problems and runs
    only: another method moves neither the score nor the interval of any.

    Few problems or seeds make redrawn scores too narrow, so they are widened as Student's t widens the normal
    distribution (docs/guides/board.md). A single run has no interval: it is not a number.
    """
    by_problem = np.array([[one.mean() if one.size else 0.0 for one in method] for method in runs])
    drawn = _drawn(runs, draws)
    known = np.where(np.isnan(drawn), by_problem.mean(1)[:, None], drawn)
    rank, difference_interval = _ranks(drawn)
    others = [_drop(runs, left) for left in range(by_problem.shape[1])] if by_problem.shape[1] > 1 else []
    ranks = np.array([rank, *(_ranks(_drawn(some, draws))[0] for some in others)])
    best = known >= known.max(0) - 1e-12
    score = by_problem.mean(1)
    return Ranking(
        score=score, interval=np.clip(_interval(drawn), 0.0, 1.0), difference=score[:, None] - score[None],
        difference_interval=difference_interval, rank=rank, first=(best / best.sum(0)).mean(1),
        rank_range=np.stack([ranks.min(0), ranks.max(0)], axis=1), by_problem=by_problem,
    )  # fmt: skip


def _drawn(runs: Runs, draws: int) -> Numbers:
    """(M, D) scores of redrawn boards."""
    problems = len(runs[0])
    chosen = np.random.default_rng([SEED, 0]).integers(problems, size=(draws, problems))
    most = max((one.size for method in runs for one in method), default=0)
    # One stream for each run, so that a method with more runs than others moves nothing of theirs
    uniform = [np.random.default_rng([SEED, 1 + run]).random((draws, problems)) for run in range(most)]
    found = []
    for method in runs:
        table = np.zeros((problems, max(most, 1)))
        for at, one in enumerate(method):
            table[at, : one.size] = one
        sizes = np.array([max(one.size, 1) for one in method])[chosen]
        total = np.zeros((draws, problems))
        for run, u in enumerate(uniform):
            total += np.where(run < sizes, table[chosen, (u * sizes).astype(int)], 0.0)
        scores, center = (total / sizes).mean(1), np.mean([one.mean() if one.size else 0.0 for one in method])
        found.append(center + _widening(problems if problems > 1 else method[0].size) * (scores - center))
    return np.array(found)


def _widening(count: int) -> float:
    """From the spread of means of redrawn values to a 95 % interval like Student's.

    >>> [round(_widening(count), 2) for count in (0, 2, 5, 20)]
    [1.0, 9.17, 1.58, 1.1]
    """
    if count < 2:
        return math.nan if count else 1.0  # without runs, the score is 0 for certain
    level = (1 + LEVEL) / 2
    return float(stdtrit(count - 1, level) / ndtri(level) * math.sqrt(count / (count - 1)))


def _ranks(drawn: Numbers) -> tuple[NDArray[np.int64], Numbers]:
    """(M,) ranks and (M, M, 2) intervals of differences."""
    intervals = np.array([_interval(one - drawn) for one in drawn])
    return 1 + (intervals[..., 1] < -1e-12).sum(1), intervals


def _interval(drawn: Numbers) -> Numbers:
    """(..., D) -> (..., 2)"""
    return np.moveaxis(np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=-1), 0, -1)


def _drop(runs: Runs, left: int) -> Runs:
    return [[one for at, one in enumerate(method) if at != left] for method in runs]


def rank_methods(board: Board, track: str, problems: Sequence[str] | None = None, draws: int = DRAWS) -> Ranking:
    """The ranking of a board's methods on a track; on all its problems, or on these."""
    names = [one.name for one in board.on(track)] if problems is None else problems
    runs = [[run_scores(board, track, method.name, name) for name in names] for method in board.methods]
    return bootstrap(runs, draws)


# Secondary figures ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How soon a method reaches one target, over all problems of a track."""

    epochs: float  # the median over problems of the median over seeds; infinity where it is never reached
    reached: float  # the share of runs, a problem without runs counting as missed
    speed_up: float  # over the baseline: the geometric mean over problems; NaN where there is no baseline


def speed(
    by_method: Mapping[str, Sequence[Numbers]], last: Sequence[float], baseline: str = BASELINE
) -> dict[str, Speed]:
    """From the epochs, by method and problem (R,), to one target; a miss counts as the budget's end in the speed-up.

    >>> found = speed({"A": [np.array([2.0])], "DescentAscent": [np.array([math.inf])]}, [100.0])
    >>> found["A"]
    Speed(epochs=2.0, reached=1.0, speed_up=50.0)
    """
    medians = {name: np.array([_median(one) for one in found]) for name, found in by_method.items()}
    budget = np.array(last)
    logs = {name: np.log(np.clip(one, FIRST, budget)) for name, one in medians.items()}
    return {
        name: Speed(
            epochs=_median(medians[name]),
            reached=float(np.mean([np.isfinite(one).mean() if one.size else 0.0 for one in found])),
            speed_up=round(math.exp((logs[baseline] - logs[name]).mean()), 12) if baseline in logs else math.nan,
        )
        for name, found in by_method.items()
    }  # fmt: skip


def _median(epochs: Numbers) -> float:
    """The upper of two in the middle: infinity has no mean with a number."""
    return float(np.sort(epochs)[epochs.size // 2]) if epochs.size else math.inf
